"""The resync of a restored ledger: it learns from the tables what happened since its copy was made."""
