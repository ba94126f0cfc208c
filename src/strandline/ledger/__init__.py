"""Durable state. The only room with SQL: one module per noun."""
