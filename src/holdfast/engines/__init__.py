"""Ways to run many specs."""
