"""Clients that leave a finished run, and what each of them contributed."""
