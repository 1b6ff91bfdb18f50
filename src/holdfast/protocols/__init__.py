"""Evaluation protocols: plans of stages, model selection, the training loop and the run of an episode."""
