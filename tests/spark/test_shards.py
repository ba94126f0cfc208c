"""Shards: where batches go, and that a lost ledger gets ids and shards back from the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline
from strandline import Lake
from strandline.core.errors import UsageError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.sites.replication import route, shard_ids
from strandline.core.types import Dataset
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import rebuild_ledger
from tests.spark.protocol import COLUMNS, crash_at, every_block, frame, ids, new_lake


@pytest.fixture
def lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Lake]:
    with new_lake(tmp_path, make_home) as made:
        made.create_dataset("wide", parse_columns(COLUMNS), shards=4)
        yield made


def shards(lake: Lake, dataset: Dataset) -> dict[str, int | None]:
    return {b.head.batch_id: b.head.shard for b in every_block(lake) if b.head.dataset == dataset.id}


def test_a_batch_goes_by_its_id_or_as_its_writer_says_and_readers_see_nothing_of_it(lake: Lake) -> None:
    wide = lake.dataset("wide")
    own = shard_ids(wide.first_shard, 4)
    for n in range(6):
        lake.append("wide", frame(lake, 10 * n), batch_id=f"batch-{n}")
    lake.append("wide", frame(lake, 60), batch_id="named", shard=own[2])
    assert lake.append("wide", frame(lake, 60), batch_id="named", shard=own[3]).duplicate, "it stays where it is"
    lake.append("events", frame(lake, 0), batch_id="batch-0")
    routed = {f"batch-{n}": route(f"batch-{n}", wide.first_shard, 4) for n in range(6)}
    assert shards(lake, wide) == {**routed, "named": own[2]} and len(set(routed.values())) > 1
    assert shards(lake, lake.dataset("events")) == {"batch-0": 0}
    assert lake.sealed("wide") == 70 and ids(lake, "wide") == list(range(70))
    for wrong in (-1, 0, own[-1] + 1):
        with pytest.raises(UsageError, match="has no shard"):
            lake.append("wide", frame(lake, 99), batch_id="wrong", shard=wrong)


def test_files_and_streams_are_routed_too(lake: Lake, tmp_path: Path) -> None:
    wide = lake.dataset("wide")
    for n in range(3):
        (tmp_path / f"{n}.jsonl").write_text(f'{{"id": {n}}}\n')
    done = lake.ingest("wide", [tmp_path / f"{n}.jsonl" for n in range(3)])
    frame(lake, 10, 5).write.parquet(str(tmp_path / "stream"))
    query = (
        lake.spark.readStream.schema("id long, text string").parquet(str(tmp_path / "stream"))
        .writeStream.foreachBatch(lake.stream_writer("wide"))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    found = shards(lake, wide)
    assert len(found) == 4 and {o.batch_id for o in done} < set(found)
    assert found == {batch: route(batch, wide.first_shard, 4) for batch in found}


def test_a_rebuilt_ledger_has_the_same_ids_and_shards(lake: Lake) -> None:
    lake.append("wide", frame(lake, 0), batch_id="a")
    lake.append("events", frame(lake, 0), batch_id="a")
    first = lake.dataset("wide").first_shard
    named = next(s for s in shard_ids(first, 4) if s != route("named", first, 4))
    lake.append("wide", frame(lake, 50), batch_id="named", shard=named)
    before = {d.name: (d.uuid, d.first_shard, d.shards) for d in lake.datasets()}
    wide = shards(lake, lake.dataset("wide"))
    assert lake.ledger.path is not None
    lake.ledger.path.unlink()
    rebuild_ledger(lake.config)
    with strandline.open(lake.config.home) as again:
        assert {d.name: (d.uuid, d.first_shard, d.shards) for d in again.datasets()} == before
        assert shards(again, again.dataset("wide")).items() >= wide.items()
        new = again.create_dataset("later", parse_columns(COLUMNS))
        assert new.first_shard == 5


@pytest.mark.parametrize("point", ["create.after_table"])
def test_a_create_that_died_is_taken_up_with_its_id_though_another_dataset_got_its_shards(
    lake: Lake, point: str
) -> None:
    crash_at(lake, point, lambda: lake.create_dataset("dead", parse_columns(COLUMNS), shards=2))
    left = lake.catalog.load("dead").properties
    other = lake.create_dataset("other", parse_columns(COLUMNS), shards=3)
    assert left["strandline.first-shard"] == str(other.first_shard) == "5"
    made = lake.create_dataset("dead", parse_columns(COLUMNS), shards=2)
    assert (made.uuid, made.first_shard) == (left["strandline.dataset-id"], 8)
    assert lake.catalog.load("dead").properties["strandline.first-shard"] == "8"


def test_datasets_made_at_once_have_shards_of_their_own(lake: Lake) -> None:
    made: list[Dataset] = []

    def make(n: int) -> None:
        made.append(lake.create_dataset(f"at_once_{n}", parse_columns(COLUMNS), shards=2))

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [s for d in made for s in shard_ids(d.first_shard, d.shards)]
    assert len(made) == 4 and len(set(taken)) == 8
    for d in made:
        assert lake.catalog.load(d.name).properties["strandline.first-shard"] == str(d.first_shard)


def test_a_dropped_dataset_keeps_its_id_when_its_table_is_adopted_again(lake: Lake) -> None:
    lake.append("events", frame(lake, 0), batch_id="a")
    before = lake.dataset("events")
    metadata = lake.catalog.load("events").metadata_location
    lake.drop_dataset("events")
    lake.spark.sql(f"CALL lake.system.register_table('default.events', '{metadata}')")
    lake.adopt_dataset("events", leave_foreign=True)
    after = lake.dataset("events")
    assert after.table_uuid == before.table_uuid
    assert after.uuid != before.uuid and after.first_shard == 5, "followers have dropped the dataset of that id"
    recorded = lake.catalog.load("events").properties
    assert (recorded["strandline.dataset-id"], recorded["strandline.first-shard"]) == (after.uuid, "5")
    lake.adopt_dataset("events")
    assert lake.dataset("events") == after
