"""Sparse mixtures of experts: routers, balance losses, the layer, its optimised path, and insertion into networks."""
