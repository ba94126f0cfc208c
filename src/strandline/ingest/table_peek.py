"""Reads a table's metadata file before Iceberg loads the table.

If Iceberg's Java library cannot parse a file, it reads it again and again, for a minute and a half. One damaged table
would stop recovery and the resync for that long."""

from __future__ import annotations

from contextlib import closing

from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Anchor
from strandline.iceberg.metadata.metadata_peek import is_glanceable, read_glance
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG, TableView
from strandline.ingest.context import IngestContext


def peek(config: LakeConfig, name: str) -> TableView | None:
    """The table's metadata. None if there is no such table, or if the catalog is a REST catalog, which reads the file
    itself. Raises StorageError or TableUnfit at once if the file is missing or damaged."""
    if config.settings.catalog.kind != "sqlite":
        return None
    if is_glanceable(config):
        glance = read_glance(config, name)
    else:
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        with closing(open_catalog(config)) as catalog:
            glance = catalog.glance(name)
    return None if glance is None else glance.view


def read_view(work: IngestContext, name: str) -> TableView:
    """The table as Iceberg loads it. Raises at once if its metadata is damaged."""
    peek(work.config, name)
    return work.tables.view(name)


def needs_no_recovery(view: TableView, anchor: Anchor | None) -> bool:
    """Whether recovery has nothing to do for a dataset without open blocks: the table has no branch of ours, and our
    tag is on main, and at the position that the ledger knows (`anchor`)."""
    is_tagged = view.main is None or view.refs.get(SETTLED_TAG) == view.main
    return not view.branches and is_tagged and view.settled in (None, anchor)
