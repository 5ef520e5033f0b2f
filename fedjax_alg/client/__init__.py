"""Local solvers for one client, written without a client axis."""
