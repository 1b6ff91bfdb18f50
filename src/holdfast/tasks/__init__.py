"""Kinds of tasks: each has its head, its loss and its metrics."""
