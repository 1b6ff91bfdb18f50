"""How far a prediction can be trusted: calibrated probabilities, and how foreign an example is."""
