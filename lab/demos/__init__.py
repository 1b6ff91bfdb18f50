"""Small experiments in which the mechanism of a system provably matters, each with its null control."""
