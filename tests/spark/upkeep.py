"""What anyone may do to a table of ours with Iceberg alone, at any moment and as hard as Iceberg lets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.spark.lakes import sql

if TYPE_CHECKING:
    from strandline.lake import Lake


def compact_as_anyone(lake: Lake, name: str) -> None:
    """Every file is written again, in no order."""
    options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
    sql(lake, f"CALL lake.system.rewrite_data_files(table => 'default.{name}', options => {options})")
    sql(lake, f"CALL lake.system.rewrite_manifests(table => 'default.{name}')")


def expire_as_anyone(lake: Lake, name: str) -> None:
    """Only what a branch or a tag holds is left."""
    arguments = f"table => 'default.{name}', older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
    sql(lake, f"CALL lake.system.expire_snapshots({arguments})")


def data_files(lake: Lake, name: str) -> int:
    return len(sql(lake, f"SELECT file_path FROM lake.default.{name}.files WHERE content = 0"))


def delete_files(lake: Lake, name: str) -> list[str]:
    """Their formats: of a deletion vector, `PUFFIN`."""
    return [r[0] for r in sql(lake, f"SELECT file_format FROM lake.default.{name}.files WHERE content > 0")]
