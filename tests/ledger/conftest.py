"""The same tests on both ledgers: SQLite, and a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Published, Reserved, SnapshotId
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.witness import Mark, Witness, open_witness

LAKE = "lake-under-test"


@dataclass(frozen=True)
class Bench:
    config: LakeConfig
    ledger: Ledger
    witness: Witness
    dataset: Dataset

    def add_dataset(self, name: str) -> Dataset:
        with self.ledger.write() as connection:
            return datasets.add(connection, name=name, table_uuid=f"uuid-of-{name}")

    def reserve(
        self,
        batch: str,
        rows: int = 10,
        *,
        digest: str | None = None,
        dataset: Dataset | None = None,
        lease_seconds: float = 60,
    ) -> Reserved:
        wanted = blocks.NewBlock((dataset or self.dataset).id, rows, batch, digest)
        block, new = blocks.reserve(self.ledger, self.witness, wanted, lease_seconds=lease_seconds)
        assert new and isinstance(block, Reserved)
        return block

    def publish(self, reserved: Reserved) -> Published:
        assert blocks.mark_staged(self.ledger, self.witness, reserved, SnapshotId(7))
        staged = blocks.find_block(self.ledger, reserved.head)
        assert isinstance(staged, blocks.Staged)
        assert blocks.mark_published(self.ledger, staged, row_count=len(reserved.head.rows), snapshot=SnapshotId(7))
        published = blocks.find_block(self.ledger, reserved.head)
        assert isinstance(published, Published)
        return published

    def sealed(self, dataset: Dataset | None = None) -> int | None:
        with self.ledger.read() as connection:
            return blocks.sealed(connection, (dataset or self.dataset).id)


def open_bench(config: LakeConfig) -> Bench:
    """A new ledger and witness, with one dataset."""
    ledger = Ledger(config)
    ledger.create(LAKE)
    ledger.open()
    witness = open_witness(config)
    witness.create(Mark(LAKE, 0))
    with ledger.write() as connection:
        dataset = datasets.add(connection, name="default.events", table_uuid="uuid-of-events")
    return Bench(config, ledger, witness, dataset)


@pytest.fixture(params=["sqlite", "postgres"])
def config(request: pytest.FixtureRequest, tmp_path: Path, make_home: Callable[..., LakeConfig]) -> LakeConfig:
    settings = {}
    if request.param == "postgres":
        settings["ledger"] = {"url": request.getfixturevalue("postgres_database")}
    return make_home(tmp_path, settings)


@pytest.fixture
def bench(config: LakeConfig) -> Iterator[Bench]:
    made = open_bench(config)
    yield made
    made.ledger.close()


@pytest.fixture
def sqlite_bench(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[Bench]:
    """For what concerns the file itself."""
    made = open_bench(make_home(tmp_path / "lake"))
    yield made
    made.ledger.close()
