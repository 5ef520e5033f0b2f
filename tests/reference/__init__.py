"""NumPy oracles, written from the papers alone."""
