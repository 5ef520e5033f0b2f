"""Extras: parts of the library that the core does without (``optional``)."""
