"""What lies in quarantine and is on no record: a ledger that was put back from an older copy has forgotten it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from strandline.drift import StorageKind
from strandline.errors import StorageError
from strandline.reconcile.bench import QUARANTINE_FOLDER
from strandline.reconcile.model import Storage
from strandline.reconcile.paths import below


def kept_without_record(storage: Storage, warehouse: str, paths: Sequence[str]) -> dict[str, str]:
    """Where each of these files is kept, if it is."""
    quarantine = f"{warehouse}/{QUARANTINE_FOLDER}"
    if storage.kind is not StorageKind.LOCAL or not Path(quarantine).is_dir():
        return {}
    try:
        runs = sorted(os.listdir(quarantine), reverse=True)
    except OSError as e:
        raise StorageError(f"{quarantine} cannot be listed: {e.strerror}") from e
    found: dict[str, str] = {}
    for path in paths:
        inside = below(path, warehouse)
        for run in runs if inside is not None else ():
            if storage.look(kept_at := f"{quarantine}/{run}/{inside}") is not None:
                found.setdefault(path, kept_at)
    return found
