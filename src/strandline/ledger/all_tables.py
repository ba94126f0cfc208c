"""The metadata with every table of the ledger: importing this imports all of `schema/`."""

from strandline.ledger.schema import applied, consumers, core, maintain, receive, reconcile, replicate, serve

ALL_SCHEMAS = (applied, consumers, core, maintain, receive, reconcile, replicate, serve)
metadata = core.metadata
