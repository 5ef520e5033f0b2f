"""Machinery of all algorithms: client map, cohorts, round loop, evaluation."""
