"""Durable state: the only place with SQL. One module per noun."""
