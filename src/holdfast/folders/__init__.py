"""Folders of saved models: their format, versions, card and publication."""
