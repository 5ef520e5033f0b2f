"""The run as a library call: train, evaluate, sweep, save and load."""
