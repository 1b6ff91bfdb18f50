"""Audit of a data set before training: duplicates, leaks, shift and advice."""
