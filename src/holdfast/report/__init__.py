"""Draw the summary of a comparison: the HTML report, its figures, terminal tables and Markdown."""
