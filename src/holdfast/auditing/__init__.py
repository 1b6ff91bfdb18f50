"""Audit of a data set before training: duplicates, leaks, shift and advice.

In shapes: n examples (rows of the data set), d features, k domains, p pairs of examples.
"""
