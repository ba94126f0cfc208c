"""The same tests on both ledgers: SQLite, and a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset, Published, Reserved, SnapshotId
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks, datasets
from strandline.ledger.witness import Witness, WitnessRecord, open_witness

if TYPE_CHECKING:
    from tests.ledger.delivery import Delivery
    from tests.ledger.receiving import Receiving

LAKE = "lake-under-test"


@dataclass(frozen=True)
class LakeState:
    """What a lake has outside of its tables: settings, ledger, witness; and one dataset."""

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


def new_lake(config: LakeConfig) -> LakeState:
    """A new ledger and witness, with one dataset."""
    ledger = Ledger(config)
    ledger.create(LAKE)
    ledger.open()
    witness = open_witness(config)
    witness.create(WitnessRecord(LAKE, 0))
    with ledger.write() as connection:
        dataset = datasets.add(connection, name="default.events", table_uuid="uuid-of-events")
    return LakeState(config, ledger, witness, dataset)


@pytest.fixture(params=["sqlite", "postgres"])
def config(request: pytest.FixtureRequest, tmp_path: Path, make_home: Callable[..., LakeConfig]) -> LakeConfig:
    settings = {}
    if request.param == "postgres":
        settings["ledger"] = {"url": request.getfixturevalue("postgres_database")}
    return make_home(tmp_path, settings)


@pytest.fixture
def lake(config: LakeConfig) -> Iterator[LakeState]:
    made = new_lake(config)
    yield made
    made.ledger.close()


@pytest.fixture
def sqlite_lake(tmp_path: Path, make_home: Callable[..., LakeConfig]) -> Iterator[LakeState]:
    """For what concerns the file itself."""
    made = new_lake(make_home(tmp_path / "lake"))
    yield made
    made.ledger.close()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[LakeState]:
    """A ledger for all tests of a module: each makes things of its own in it."""
    from tests.ledger.delivery import open_shared

    yield from open_shared(request, request.param)


@pytest.fixture(scope="module")
def shared_sqlite(request: pytest.FixtureRequest) -> Iterator[LakeState]:
    from tests.ledger.delivery import open_shared

    yield from open_shared(request, "sqlite")


@pytest.fixture
def delivery(shared: LakeState) -> Delivery:
    """A sink of its own, and its dataset."""
    from tests.ledger.delivery import new_delivery

    return new_delivery(shared)


@pytest.fixture
def receiving(shared: LakeState) -> Receiving:
    """A receiver's dataset of its own."""
    from tests.ledger.receiving import new_receiving

    return new_receiving(shared)
