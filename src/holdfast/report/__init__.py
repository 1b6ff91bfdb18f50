"""Tables, statistics, pictures and the page; reads records only, never torch."""
