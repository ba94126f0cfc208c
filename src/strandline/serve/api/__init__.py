"""The routes of the API: one module per stage or thing."""
