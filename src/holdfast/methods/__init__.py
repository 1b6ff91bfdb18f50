"""Training methods, each with its equation and its settings."""
