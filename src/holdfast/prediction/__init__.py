"""Predictions of saved models: files, outputs, combinations and export."""
