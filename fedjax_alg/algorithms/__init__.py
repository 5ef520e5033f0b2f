"""One method, or one family of thin variants, per file."""
