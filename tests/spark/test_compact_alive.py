"""A compaction whose machine slept commits nothing of what somebody may have taken for garbage meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.core.errors import LeaseLost
from strandline.core.settings.lake_config import LakeConfig
from strandline.iceberg.spark import maintenance as upkeep
from strandline.iceberg.spark.number_bounds import NewFile
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import runs
from tests.spark.protocol import frame, ids, new_lake


def test_a_compaction_that_was_taken_for_dead_commits_nothing_and_removes_what_it_wrote(
    tmp_path: Path, make_home: Callable[..., LakeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_lake(tmp_path, make_home) as lake:
        for n in range(6):
            lake.append("events", frame(lake, 10 * n))
        files = set(Path(lake.config.warehouse_folder or "").rglob("*.parquet"))
        write = upkeep.Rewrite.write

        def write_and_sleep(self: upkeep.Rewrite) -> list[NewFile]:
            written = write(self)
            with lake.ledger.write() as connection:
                assert runs.close_dead(connection, utc_now(), lease_seconds=-60) == 1
            return written

        monkeypatch.setattr(upkeep.Rewrite, "write", write_and_sleep)
        before = lake.spark.table("lake.default.events.snapshots").count()
        with pytest.raises(LeaseLost):
            lake.maintenance.compact("events")
        assert lake.spark.table("lake.default.events.snapshots").count() == before
        assert set(Path(lake.config.warehouse_folder or "").rglob("*.parquet")) == files
        assert ids(lake) == list(range(60))
