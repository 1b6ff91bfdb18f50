"""One more domain for a model that is trained already."""
