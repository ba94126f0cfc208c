"""dlt with an incremental cursor over an Iceberg table, as its documentation advises: a resource that asks the table
for rows at or behind the highest value that the pipeline has seen, and lets dlt drop those that it had before."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import dlt
from dlt.common.storages.load_package import PackageStorage
from pyiceberg.expressions import AlwaysTrue, GreaterThanOrEqual
from pyiceberg.table import StaticTable

from bench.peers.answering import answer_questions

_pipelines: dict[str, Any] = {}


def open_pipeline(name: str, destination: str, target: str) -> None:
    """`destination`: `filesystem` with a folder as its target, or `postgres` with a URL."""
    made: Any = (
        dlt.destinations.filesystem(target) if destination == "filesystem" else dlt.destinations.postgres(target)
    )
    _pipelines[name] = dlt.pipeline(name, destination=made, dataset_name=name)


def run(name: str, metadata: str, cursor: str, columns: list[str]) -> None:
    """Whatever the table has that the pipeline has not seen yet, appended to the target. `metadata`: of the table as
    it is now."""
    pipeline = _pipelines[name]

    @dlt.resource(name="rows", write_disposition="append")
    def rows(seen: Any = dlt.sources.incremental(cursor)) -> Iterator[Any]:
        last = seen.last_value
        wanted = AlwaysTrue() if last is None else GreaterThanOrEqual(cursor, _literal(last))
        scan = StaticTable.from_metadata(metadata).scan(row_filter=wanted, selected_fields=tuple(columns))
        yield from scan.to_arrow_batch_reader()

    file_format = {"loader_file_format": "parquet"} if "filesystem" in str(pipeline.destination) else {}
    pipeline.run(rows(), **file_format)


def be_killed_after_commit() -> None:
    """From now on: once the target has a file's rows, and before dlt has noted that it does."""
    noted = PackageStorage.save_pending_transition

    def save_pending_transition(self: PackageStorage, load_id: str, file_name: str, *more: Any, **named: Any) -> None:
        if file_name.startswith("rows."):
            os.kill(os.getpid(), signal.SIGKILL)
        noted(self, load_id, file_name, *more, **named)

    PackageStorage.save_pending_transition = save_pending_transition  # type: ignore[method-assign]


def _literal(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


if __name__ == "__main__":
    answer_questions(open=open_pipeline, run=run, be_killed=be_killed_after_commit)
