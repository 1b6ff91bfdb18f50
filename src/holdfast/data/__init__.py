"""Readers, splits, batches, synthetic worlds and the cache of frozen features."""
