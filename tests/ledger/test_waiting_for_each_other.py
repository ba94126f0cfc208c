"""Those who raise a floor, open a ledger, add a sink or drop a dataset at the same moment: each sees what the other
did, and nobody waits for one who waits for him."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.errors import LeaseLost, NoSuchDataset, RefusedError
from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import Dataset, Seq
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog, open_catalog
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.datasets import DatasetAdmin
from strandline.ingest.resync.floor import restore_floor
from strandline.ledger.deliver import losses, sinks
from strandline.ledger.deliver.losses import NewLoss
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import datasets, sequence
from strandline.ledger.maintain import floors, skipped_rows
from strandline.ledger.maintain.skipped_rows import LaneDrop
from strandline.ledger.receive import received
from strandline.ledger.receive.received import BodyGone, Decision, New
from strandline.maintain.context import MaintainContext, quiet
from strandline.maintain.retain import _Drop, _LosingSink, _Retention
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, add_sink, new_delivery, one_chunk
from tests.ledger.receiving import Receiving, new_receiving

ON_POSTGRES = pytest.mark.parametrize("config", ["postgres"], indirect=True)
"""A SQLite ledger has one writer at a time."""


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """In a thread of its own, with a connection of its own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def is_waiting(work: Future[Any]) -> bool:
    try:
        work.result(0.5)
    except TimeoutError:
        return True
    except Exception:
        return False
    return False


def retention(lake: LakeState, dataset: Dataset) -> _Retention:
    """Raising a floor needs the ledger and the witness only."""
    upkeep = SimpleNamespace(lake_id=LAKE, ledger=lake.ledger, witness=lake.witness)
    return _Retention(
        cast(MaintainContext, upkeep), dataset, RetainSettings(older_than=timedelta(days=1)), utc_now(), quiet
    )


def passing_over(delivery: Delivery, until: int) -> _Drop:
    with delivery.ledger.read() as connection:
        (standing,) = skipped_rows.lane_positions(connection, delivery.sink)
    lost = NewLoss(standing.partition, standing.mark, Seq(until), 50)
    passed = _LosingSink(delivery.sink, delivery.lease, (standing,))
    return _Drop(passed, (LaneDrop(standing, Seq(until)),), (lost,), (), False)


@ON_POSTGRES
@pytest.mark.parametrize("drops_rows", [False, True])
def test_an_opening_and_a_retention_never_wait_for_each_other(lake: LakeState, drops_rows: bool) -> None:
    delivery = new_delivery(lake)
    delivery.deliver(50, one_chunk("", None, 50))
    run = retention(lake, delivery.dataset)
    end = 100 if drops_rows else 50
    lost = (passing_over(delivery, end),) if drops_rows else ()
    opening = threading.Event()

    def rise() -> tuple[int, Seq]:
        opening.wait(60)
        return run._raise_floor(Seq(end), lost, ())

    with beside(rise) as raised:
        with lake.ledger.write() as connection:
            sequence.lock(connection)  # as a resync does from its beginning
            opening.set()
            assert is_waiting(raised)
            floors.lock(connection, delivery.dataset.id)
            floors.raise_to(connection, delivery.dataset.id, Seq(20))
            sinks.forget_leases(connection)
        if drops_rows:
            with pytest.raises(LeaseLost):
                raised.result(60)
        else:
            assert raised.result(60)[1] == 50
    assert delivery.marks() == {"": 50}


def test_an_opening_that_takes_the_floor_from_the_table_sees_a_sink_that_is_being_added(lake: LakeState) -> None:
    dataset = lake.dataset
    tables = SimpleNamespace(view=lambda name: SimpleNamespace(floor=20))

    def open_() -> list[str]:
        with lake.ledger.write() as connection:
            sequence.lock(connection)
            return restore_floor(cast(Any, SimpleNamespace(tables=tables)), connection, dataset)

    started = threading.Event()

    def begin() -> list[str]:
        started.wait(60)
        return open_()

    with beside(begin) as opened:
        with lake.ledger.write() as connection:
            floors.lock(connection, dataset.id)
            assert floors.get(connection, dataset.id) is None
            added = add_sink(connection, dataset)
            started.set()
            assert is_waiting(opened)
        assert opened.result(60) == [added.name]
    with lake.ledger.read() as connection:
        (loss,) = losses.of_sink(connection, added)
        assert (loss.until, loss.rows) == (20, None)


# --- dropping a dataset ----------------------------------------------------------------------------------------------


@dataclass
class Meddled:
    """The real catalog; something else happens at the moment at which the table is about to go."""

    real: PyIcebergCatalog
    meanwhile: Callable[[], None] = lambda: None
    dropped: list[str] = field(default_factory=list)

    def exists(self, name: str) -> bool:
        self.meanwhile()
        return self.real.exists(name)

    def drop(self, name: str) -> None:
        self.dropped.append(name)
        self.real.drop(name)


@pytest.fixture
def catalog(lake: LakeState) -> Iterator[Meddled]:
    real = open_catalog(lake.config)
    yield Meddled(real)
    real.close()


@pytest.fixture
def receiving(lake: LakeState, catalog: Meddled) -> Receiving:
    made = new_receiving(lake)
    columns = parse_columns([{"name": "n", "type": "long"}])
    catalog.real.create_dataset_table(made.dataset.name, columns, lake_id=LAKE, epoch=0)
    return made


@pytest.fixture
def care(lake: LakeState, catalog: Meddled) -> DatasetAdmin:
    return DatasetAdmin(
        LAKE, lake.ledger, cast(PyIcebergCatalog, catalog), SimpleNamespace(bodies=lambda table_uuid: [])
    )


def is_there(lake: LakeState, dataset: Dataset) -> bool:
    with lake.ledger.read() as connection:
        return datasets.find(connection, dataset.name) is not None


def test_a_body_that_comes_while_its_dataset_is_dropped_is_refused_and_never_lost(
    lake: LakeState, receiving: Receiving, catalog: Meddled, care: DatasetAdmin
) -> None:
    with ThreadPoolExecutor(1) as pool:
        sent: list[Future[list[Decision]]] = []

        def send() -> None:
            sent.append(pool.submit(receiving.record, receiving.body("late")))
            assert is_waiting(sent[0])

        catalog.meanwhile = send
        care.drop(receiving.dataset)
        assert sent[0].result(60) == [BodyGone("dataset")]
    assert catalog.dropped == [receiving.dataset.name] and not is_there(lake, receiving.dataset)
    with pytest.raises(NoSuchDataset):
        care.drop(receiving.dataset)


@ON_POSTGRES
def test_a_drop_waits_for_a_body_that_is_being_recorded_and_then_refuses(
    lake: LakeState, receiving: Receiving, catalog: Meddled, care: DatasetAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, go_on = threading.Event(), threading.Event()
    keys = received._record_keys

    def slowly(*arguments: Any) -> dict[int, Decision]:
        locked.set()
        go_on.wait(60)
        return keys(*arguments)

    monkeypatch.setattr(received, "_record_keys", slowly)
    body = receiving.body("first")
    with beside(lambda: receiving.record(body)) as recorded:
        locked.wait(60)
        with beside(lambda: care.drop(receiving.dataset)) as dropped:
            assert is_waiting(dropped)
            go_on.set()
            with pytest.raises(RefusedError, match=r"waits? to be ingested"):
                dropped.result(60)
        assert [type(d) for d in recorded.result(60)] == [New]
    assert catalog.dropped == [] and is_there(lake, receiving.dataset)


def test_a_sink_that_is_added_to_a_dataset_that_was_dropped_meanwhile_is_refused(
    lake: LakeState, receiving: Receiving, care: DatasetAdmin
) -> None:
    care.drop(receiving.dataset)
    with pytest.raises(NoSuchDataset, match="dropped meanwhile"), lake.ledger.write() as connection:
        floors.lock(connection, receiving.dataset.id)


def test_a_dataset_whose_table_cannot_be_dropped_stays(
    lake: LakeState, receiving: Receiving, catalog: Meddled, care: DatasetAdmin
) -> None:
    def fail() -> None:
        raise RefusedError("the catalog is away")

    catalog.meanwhile = fail
    with pytest.raises(RefusedError, match="away"):
        care.drop(receiving.dataset)
    assert is_there(lake, receiving.dataset)
    catalog.meanwhile = lambda: None
    care.drop(receiving.dataset)
    assert not is_there(lake, receiving.dataset)
