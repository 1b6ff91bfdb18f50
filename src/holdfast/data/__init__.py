"""Readers, splits, batches, synthetic worlds and the cache of frozen features.

In shapes: n examples (rows of a data set), d features, c classes, h and w the sides of images in pixels, v nodes and e
edges of a graph.
"""
