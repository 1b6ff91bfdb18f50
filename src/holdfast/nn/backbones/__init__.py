"""Encoders for texts, images, vectors and graphs."""
