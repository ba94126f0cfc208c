"""How rows leave."""
