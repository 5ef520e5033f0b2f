"""Derivatives through all rounds of a run, and tuning with them."""
