"""The kind `forward` under the contract of all sinks, against a real receiver over a real lake.

Nothing is ingested, so no Spark is needed: what was answered 202 is in the spool and in the ledger, and is read there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.core.errors import StorageError
from strandline.core.forward_protocol import LaneName
from strandline.core.settings.lake_config import ForwardSettings
from strandline.core.types import SEQ_MAX, Seq
from strandline.deliver.sink import Address, Claim, Claimed, Landed, Refused, Sink, SinkContext, TryLater
from strandline.deliver.sink_kinds import find_kind, resolve
from strandline.iceberg.schema.columns import Column, Primitive
from strandline.jobs.loop import LoopControl
from strandline.lake import Lake
from strandline.lake_admin import init_lake
from strandline.ledger.receive import senders
from tests.receiver_journal import ReceiverJournal
from tests.sinks.contract import (
    ADDRESS,
    DATASET,
    LAKE,
    TOKEN,
    Made,
    RefusesLowerTerms,
    SinkContract,
    landed,
    parcel,
    ready,
    seqs,
)

PLACES = ("one", "two")


@dataclass
class Receiving:
    lake: Lake
    url: str
    token: Path
    mark: str
    """Tells the datasets and the token of one test from those of the others."""
    options: dict[str, str] = field(default_factory=dict)

    def dataset(self, place: str) -> str:
        return f"{place}_{self.mark}"

    def sink(self, *, place: str = "one", generation: int = 1, lake: str = LAKE, dataset: str = DATASET) -> Sink:
        kind = find_kind("forward")
        given = {
            "url": f"{self.url}/v1/datasets/{self.dataset(place)}/rows",
            "token": f"file:{self.token}",
            **self.options,
        }
        settings = ForwardSettings(allow=["127.0.0.0/8"])
        context = SinkContext(
            Path(), dataset, generation, resolve(kind, given), lake=lake, settings=settings, given=given
        )
        return kind.open(context)

    def numbers(self, sink: Sink, address: Address) -> list[int]:
        """Of the rows that the receiver has; they say themselves which they are."""
        lane = LaneName(address.lake, address.instance, address.generation, address.dataset, address.partition)
        found: list[int] = []
        with self.lake.ledger.read() as connection:
            dataset = self.lake.dataset(sink.destination.split("/")[-2])
            bodies = senders.list_placed(connection, dataset.id, lane, Seq(1), SEQ_MAX, 10_000)
        for body in bodies:
            assert body.spool is not None
            with self.lake.receiver.context.spool.read(body.spool) as parts:
                found += [int(name.split()[-1]) for part in parts for name in part.column("name").to_pylist()]
        return sorted(found)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, str]]:
    """One receiver for all tests here."""
    lake = init_lake(tmp_path_factory.mktemp("receiving") / "lake")
    journal, stopping = ReceiverJournal(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(lake.receiver.serve, LoopControl(stopping), journal, port=0, ingest=False)
        while not journal.up.wait(0.05):
            assert not serving.done(), serving.exception()
        try:
            yield lake, journal.url
        finally:
            stopping.set()
            serving.result()
    lake.close()


@pytest.fixture
def receiving(served: tuple[Lake, str], tmp_path: Path) -> Receiving:
    """Datasets and a token of the test's own."""
    lake, url = served
    ours = Receiving(lake, url, tmp_path / "token", uuid.uuid4().hex)
    for place in PLACES:
        lake.create_dataset(ours.dataset(place), [Column("name", Primitive("string"))])
    ours.token.write_text(lake.receiver.create_token(ours.mark)[1] + "\n")
    return ours


class _Forward(RefusesLowerTerms, SinkContract):
    @pytest.fixture
    def made(self, receiving: Receiving) -> Made:
        return Made(receiving.sink, receiving.numbers, None)

    def test_a_destination_of_another_lake_or_dataset_is_refused_by_name(self, made: Made) -> None:
        """Not here: several lakes may feed one dataset, and each has a record of its own."""
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        for lake, dataset in (("other-lake", DATASET), (LAKE, "shop.other")):
            other = made.open(place="one", lake=lake, dataset=dataset)
            assert other.claimed() is None
            claim = Claim(lake, "instance-9", dataset, "t")
            assert other.claim(claim, 1).claim == claim
            address = replace(ADDRESS, lake=lake, instance="instance-9", dataset=dataset)
            assert other.held([(address, None)])[0].ranges == ()
            assert not landed(other.sender(TOKEN), parcel(sink.form, address, 3, 9)).repeat
        assert made.numbers(sink, ADDRESS) == [1, 2, 3, 4, 5]


class TestForwardJsonLines(_Forward):
    pass


class TestForwardArrow(_Forward):
    @pytest.fixture
    def made(self, receiving: Receiving) -> Made:
        receiving.options["format"] = "arrow"
        return Made(receiving.sink, receiving.numbers, None)


def test_a_row_that_does_not_fit_is_refused_with_its_line(receiving: Receiving) -> None:
    made = Made(receiving.sink, receiving.numbers, None)
    sink = ready(made)
    good = parcel(sink.form, ADDRESS, 1, 5)
    lines = good.rows.column("line").to_pylist()
    lines[2] = '{"_ingest_seq":3,"name":3,"other":1}'
    bad = replace(good, rows=good.rows.set_column(1, "line", pa.array(lines)))
    outcome = sink.sender(TOKEN).send(bad)
    assert isinstance(outcome, Refused) and "line 3" in outcome.why
    assert made.numbers(sink, ADDRESS) == []


def test_a_token_that_was_replaced_is_taken_up_without_a_restart(receiving: Receiving) -> None:
    made = Made(receiving.sink, receiving.numbers, None)
    sink = ready(made)
    sender = sink.sender(TOKEN)
    landed(sender, parcel(sink.form, ADDRESS, 1, 5))
    receiving.lake.receiver.revoke_token(receiving.mark)
    outcome = sender.send(parcel(sink.form, ADDRESS, 6, 9))
    assert isinstance(outcome, TryLater) and "401" in outcome.why
    create = receiving.lake.receiver.create_token
    receiving.token.write_text(create(f"{receiving.mark}-other")[1])
    outcome = sender.send(parcel(sink.form, ADDRESS, 6, 9))
    assert isinstance(outcome, TryLater) and "--replaces" in outcome.why
    receiving.token.write_text(create(f"{receiving.mark}-anew", replaces=receiving.mark)[1])
    assert isinstance(sender.send(parcel(sink.form, ADDRESS, 6, 9)), Landed)
    assert [h.rows for h in sink.held([(ADDRESS, None)])[0].ranges] == [seqs(1, 5), seqs(6, 9)]


def test_a_dataset_that_is_not_there_is_told_and_nothing_is_refused(receiving: Receiving) -> None:
    sink = receiving.sink(place="three")
    with pytest.raises(Exception, match="404"):
        sink.claimed()
    assert isinstance(sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 1, 5)), TryLater)


def test_a_receiver_that_has_not_seen_the_generations_before_is_led_through_them(receiving: Receiving) -> None:
    """The sink was reset more than once meanwhile, or the receiver has a new ledger."""
    made = Made(receiving.sink, receiving.numbers, None)
    sink = ready(made, generation=4)
    assert sink.claimed() == Claimed(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid"), 4)
    landed(sink.sender(TOKEN), parcel(sink.form, replace(ADDRESS, generation=4), 1, 5))
    with pytest.raises(StorageError, match="generation 4"):
        sink.claim(Claim(LAKE, ADDRESS.instance, DATASET, "table-uuid"), 2**62)
