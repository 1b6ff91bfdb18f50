"""How sure predictions are: calibration, sets with coverage, mixtures, shifts of the class mix."""
