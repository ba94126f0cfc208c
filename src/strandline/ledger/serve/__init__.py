"""What the API stores in the ledger."""
