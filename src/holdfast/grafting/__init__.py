"""Memories and experts in a network of one's own, for a training loop of one's own, and the way back."""
