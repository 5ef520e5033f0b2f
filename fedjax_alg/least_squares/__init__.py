"""Layers fitted by least squares: what clients send, codes, the solution."""
