"""The arbiter: one record that all sites of a lake reach, and that says who leads."""
