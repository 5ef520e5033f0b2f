"""What the papers claim: numbers (CSV), sentences and their checks."""
