"""Tables, statistics, figures and the HTML report; reads records only and never imports torch."""
