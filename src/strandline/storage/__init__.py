"""Access to what lies in storage, for every room."""
