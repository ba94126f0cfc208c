"""Writes a run's findings to a file, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from uuid import uuid4

from strandline.core.errors import UsageError
from strandline.storage.durable import finish_file

if TYPE_CHECKING:
    from strandline.core.records.reconcile_records import ReconcileRun
    from strandline.reconcile.model import Finding


class FindingsFile:
    """Replaces the file completely or not at all: a part of the findings would look like all of them."""

    def __init__(self, path: Path, part: TextIO) -> None:
        self._path = path
        self._part = part
        self._count = 0

    def write(self, finding: Finding) -> None:
        from strandline.reconcile.rendering import document

        with _explained(self._path):
            print(json.dumps(document(finding), ensure_ascii=False), file=self._part)
        self._count += 1

    def finish(self, run: ReconcileRun) -> bool:
        """Returns whether the file was written: not if the run ended before it had reported everything."""
        found = run.outcome.found
        everything = run.has_compared and self._count == found.total
        if run.aborted is not None and not everything:
            return False
        with _explained(self._path):
            self._part.close()
            finish_file(Path(self._part.name), self._path)
        return True


@contextmanager
def findings_file(path: Path | None) -> Iterator[FindingsFile | None]:
    if path is None:
        yield None
        return
    with _explained(path):
        part = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part").open("w", encoding="utf-8")
    try:
        yield FindingsFile(path, part)
    finally:
        with _explained(path):
            Path(part.name).unlink(missing_ok=True)
            part.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UsageError(f"{path} cannot be written: {e.strerror or e}") from e
