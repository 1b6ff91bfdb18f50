"""graft."""
