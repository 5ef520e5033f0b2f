"""The command line: absl flag modules, one per paper, and what they share."""
