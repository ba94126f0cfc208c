"""The ledger's tables, by stage."""
