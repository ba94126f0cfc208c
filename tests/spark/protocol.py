"""What the tests of the protocol share: small lakes, and looking at what is really in a table."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import strandline
from strandline.core import failpoints
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Abandoned, Block, Published, Reserved, Staged
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ledger.ingest import blocks, published_blocks
from tests.spark.lakes import in_order

COLUMNS = [{"name": "id", "type": "long", "required": True}, {"name": "text", "type": "string"}]
LEASE_SECONDS = 60
"""So long that no writer loses its block on a machine that is slow."""


def new_lake(folder: Path, make_home: Callable[..., LakeConfig], **ingest: Any) -> strandline.Lake:
    settings: Mapping[str, Mapping[str, Any]] = {"ingest": {"lease_seconds": LEASE_SECONDS, **ingest}}
    make_home(folder, settings)
    lake = strandline.init_lake(folder)
    lake.create_dataset("events", parse_columns(COLUMNS))
    return lake


def frame(lake: strandline.Lake, start: int, count: int = 10, partitions: int = 2) -> Any:
    return lake.spark.range(start, start + count, 1, partitions).selectExpr("id", "concat('row ', id) AS text")


def rows(lake: strandline.Lake, dataset: str = "events") -> list[tuple[int, int]]:
    """(number, id) of everything that a reader of main sees, in order of the numbers."""
    found = lake.spark.table(f"lake.default.{dataset}").select("_ingest_seq", "id").collect()
    return [(r[0], r[1]) for r in in_order(found)]


def ids(lake: strandline.Lake, dataset: str = "events") -> list[int]:
    return sorted(i for _, i in rows(lake, dataset))


def branches(lake: strandline.Lake, dataset: str = "events") -> list[str]:
    return sorted(lake.work.tables.view(f"default.{dataset}").branches)


def every_block(lake: strandline.Lake) -> list[Block]:
    with lake.ledger.read() as connection:
        numbers = connection.exec_driver_sql("SELECT id FROM block ORDER BY id").scalars().all()
        found = [blocks.get(connection, n) for n in numbers]
    return [b for b in found if b is not None]


def states(lake: strandline.Lake) -> list[str]:
    names: dict[type, str] = {Reserved: "reserved", Staged: "staged", Published: "published", Abandoned: "abandoned"}
    return [names[type(b)] for b in every_block(lake)]


def outlive_lease(lake: strandline.Lake) -> None:
    """As if the lease of every block had run out."""
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(
            "UPDATE block SET lease_until = lease_until - 3600000000 WHERE lease_until IS NOT NULL"
        )


def ledger_is_locked(lake: strandline.Lake) -> bool:
    """Whether another process has a lock on the ledger: one that stands still keeps it."""
    with closing(sqlite3.connect(str(lake.ledger.path), timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def crash_at(lake: strandline.Lake, point: str, step: Callable[[], Any]) -> None:
    """The step ends at the point as if the process had: nothing after it is done, nothing is tidied up."""
    failpoints.arm(f"{point}=fail")
    try:
        step()
    except failpoints.FailpointError as e:
        assert str(e) == point
    else:
        raise AssertionError(f"{point} was not reached")
    finally:
        failpoints.arm("")


def copy_ledger(lake: strandline.Lake, name: str) -> Path:
    target = lake.config.home / name
    lake.ledger.backup(target)
    return target


def restore_ledger(lake: strandline.Lake, copy: Path) -> None:
    assert lake.ledger.path is not None
    shutil.copy(copy, lake.ledger.path.with_suffix(".restoring"))
    lake.ledger.path.with_suffix(".restoring").replace(lake.ledger.path)


def forget_two_batches(lake: strandline.Lake) -> None:
    """Batch `a` is published and `b` is staged; then the ledger is restored from a copy that has neither."""
    copy = copy_ledger(lake, "copy.db")
    lake.append("events", frame(lake, 0), batch_id="a")
    crash_at(lake, "stage.after_mark", lambda: lake.append("events", frame(lake, 20), batch_id="b"))
    restore_ledger(lake, copy)


@contextmanager
def unreadable(lake: strandline.Lake, dataset: str) -> Iterator[None]:
    """The table's metadata is somewhere else meanwhile."""
    folder = lake.config.warehouse_folder
    assert folder is not None
    metadata = folder / "default" / dataset / "metadata"
    away = metadata.rename(metadata.with_name("away"))
    yield
    away.rename(metadata)


def expire_everything(lake: strandline.Lake, dataset: str = "events") -> None:
    """As hard as Iceberg lets anyone expire: only what a branch or tag holds is left."""
    lake.spark.sql(
        f"CALL lake.system.expire_snapshots(table => 'default.{dataset}', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )


def compact_everything(lake: strandline.Lake, dataset: str = "events") -> None:
    lake.spark.sql(
        f"CALL lake.system.rewrite_data_files(table => 'default.{dataset}', options => map('rewrite-all', 'true'))"
    )


def audit_events(lake: strandline.Lake) -> list[str]:
    from strandline.ledger import audit

    with lake.ledger.read() as connection:
        return [e.event for e in audit.latest(connection)]


def assert_sound(lake: strandline.Lake, expected_ids: list[int], dataset: str = "events") -> None:
    """Each row once, each number once and owned, nothing open, the seal over everything, no branch left."""
    found = rows(lake, dataset)
    assert sorted(i for _, i in found) == sorted(expected_ids)
    numbers = [n for n, _ in found]
    assert len(numbers) == len(set(numbers))
    target = lake.dataset(dataset)
    with lake.ledger.read() as connection:
        owned = published_blocks.owned_ranges(connection, target.id)
        assert blocks.open_blocks(connection, target.id) == []
    assert all(any(n in r for r in owned) for n in numbers), "a row's number belongs to no block"
    assert branches(lake, dataset) == []
    sealed = lake.sealed(dataset)
    assert numbers == [] or (sealed is not None and sealed >= max(numbers))
    assert sorted(r["id"] for r, _ in lake.read_since(dataset)) == sorted(expected_ids)
