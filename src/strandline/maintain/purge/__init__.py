"""`purge`: rows deleted on demand, wherever the lake has them."""
