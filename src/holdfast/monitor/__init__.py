"""Monitoring of a deployed model: drift, and the accuracy on examples without labels."""
