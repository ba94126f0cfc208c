"""One flipped bit somewhere in a table's metadata, and then `--act`: no live file moves, no entry is dropped, and no
run ends because of it. Tables that Spark wrote are in tests/spark/test_reconcile.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign import scaled, seed
from tests.reconcile.flipping import FlippedLake, quick_runs

SHARDS = 4
FLIPS = scaled(30, 600)
"""In each shard."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_flipped_bit_moves_a_live_file_or_drops_an_entry_or_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    lake = FlippedLake(tmp_path / "lake")
    with quick_runs(lake, monkeypatch):
        lake.flips(random.Random(seed(1453) * SHARDS + shard), FLIPS)
        # Few bits make an entry look like one whose file is missing, so one of those is always among them.
        assert lake.flip_one(*lake.renaming_flip(), len(lake.strays)).outcome.suspects == 1
