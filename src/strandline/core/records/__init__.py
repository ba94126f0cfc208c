"""The types of records that the ledger stores: audit events, runs, tasks."""
