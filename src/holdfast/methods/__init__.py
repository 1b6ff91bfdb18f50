"""Training methods: one file per method, with its equation and its settings."""
