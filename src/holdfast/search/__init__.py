"""Hyper-parameter search: where it looks, the runs it makes, and what it chooses."""
