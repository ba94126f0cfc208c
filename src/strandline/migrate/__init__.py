"""Moves a lake to another ledger, another catalog and another warehouse."""
