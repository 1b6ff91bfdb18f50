"""The laboratory of Holdfast: measurements of speed, published tables, analyses of published systems, and dialogue.

It is a package of its own, which adds commands and entries of the catalog to those of Holdfast.
"""
