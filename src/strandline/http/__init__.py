"""The HTTP server that the receiver and the API share."""
