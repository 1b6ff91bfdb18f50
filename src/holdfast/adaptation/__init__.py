"""Saved models for new domains: labelled or not, and encoders for a new corpus."""
