"""`purge`: deletes rows on demand, everywhere in the lake."""
