"""The read model behind `status`, `metrics` and their JSON."""
