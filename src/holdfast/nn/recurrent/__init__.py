"""LSTM and GRU with a memory read at every step."""
