"""What all algorithms share: client map, cohorts, round loop, evaluation."""
