"""One JSON document for each thing that is shown."""
