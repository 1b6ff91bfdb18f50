"""Memories: tensors that a network reads and that are learned, written or grown."""
