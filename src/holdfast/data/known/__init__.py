"""Readers of published data sets; the sets are listed in `sets.toml`."""
