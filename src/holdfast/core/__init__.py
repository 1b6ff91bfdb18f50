"""Shared data structures and utilities: inputs, batches, settings, randomness, checkpoints, distributed training."""
