"""Trained models: folders with versions, predictions, calibration, adaptation, export and pretraining."""
