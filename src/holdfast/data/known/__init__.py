"""known."""
