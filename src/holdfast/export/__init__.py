"""A model folder as one program that runs without this library."""
