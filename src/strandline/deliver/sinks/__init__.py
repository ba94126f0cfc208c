"""One module per kind of sink."""
