"""Request bodies to typed rows, within bounds."""
