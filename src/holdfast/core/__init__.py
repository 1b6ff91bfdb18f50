"""The words everyone speaks: inputs, batches, seeds, the tape, checkpoints."""
