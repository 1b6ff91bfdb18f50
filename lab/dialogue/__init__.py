"""Dialogue: an encoder that answers messages, its task and its data set."""
