"""Training rules: a model and the step that trains it."""
