"""The dashboard: pages that the server renders from the documents of the API, one stylesheet, one script."""
