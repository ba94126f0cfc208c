"""Runs Alembic inside a transaction that the ledger opened."""

from alembic import context

from strandline.ledger.schema.core import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
