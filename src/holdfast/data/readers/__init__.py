"""Readers of user-supplied files and in-memory examples."""
