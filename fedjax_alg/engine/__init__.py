"""The machinery every algorithm shares: clients, rounds, loop, evaluation."""
