"""What every room shares: types, errors, settings, failpoints. No I/O, except reading settings."""
