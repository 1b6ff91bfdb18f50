"""Analyses of published systems: class slots, image patches, object parts, and projections by t-SNE."""
