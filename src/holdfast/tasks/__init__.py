"""Kinds of tasks: each has its loss and its metrics."""
