"""The resync of a restored ledger: it learns from the tables what has happened since its copy was made."""
