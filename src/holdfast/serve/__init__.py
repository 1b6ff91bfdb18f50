"""A model folder behind HTTP."""
