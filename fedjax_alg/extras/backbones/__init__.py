"""Pre-trained networks: their weights, read without running code, and features."""
