"""Statistics of records: tables of scores, paired tests, gaps, and the recommended method; never imports torch."""
