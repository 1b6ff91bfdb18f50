"""Hyperparameter search: spaces, samplers and the search itself."""
