"""One contract for the witness, in a local folder and on a real S3 server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.core.errors import ResyncNeeded, StorageError, WitnessUnreadable
from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.witness import LocalWitness, Witness, WitnessRecord, open_witness
from tests.servers import S3


@pytest.fixture(params=["local", "s3"])
def witness(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_home: Callable[..., LakeConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> Witness:
    if request.param == "local":
        return open_witness(make_home(tmp_path))
    server: S3 = request.getfixturevalue("s3")
    monkeypatch.setenv("TEST_SECRET_KEY", server.secret_key)
    warehouse = {
        "url": f"s3://{server.make_bucket()}/some/prefix",
        "endpoint": server.endpoint,
        "access_key": server.access_key,
        "secret_key": "env:TEST_SECRET_KEY",
    }
    return open_witness(make_home(tmp_path, {"warehouse": warehouse}))


def test_it_reads_back_what_was_written(witness: Witness) -> None:
    witness.create(WitnessRecord("lake", 0))
    witness.raise_to(10, expected=0)
    witness.raise_to(25, expected=10)
    assert witness.read() == WitnessRecord("lake", 25)


def test_it_is_made_once(witness: Witness) -> None:
    witness.create(WitnessRecord("lake", 0))
    with pytest.raises(StorageError):
        witness.create(WitnessRecord("other", 0))
    assert witness.read().lake == "lake"


def test_it_moves_only_from_where_the_ledger_thinks_it_is(witness: Witness) -> None:
    witness.create(WitnessRecord("lake", 10))
    for expected in (9, 11, 0):
        with pytest.raises(ResyncNeeded):
            witness.raise_to(50, expected=expected)
    assert witness.read().highest == 10


def test_a_missing_one_is_unreadable_and_not_zero(witness: Witness) -> None:
    with pytest.raises(WitnessUnreadable):
        witness.read()
    with pytest.raises(WitnessUnreadable):
        witness.raise_to(1, expected=0)


def test_of_racing_ledgers_exactly_one_raises_it(witness: Witness) -> None:
    witness.create(WitnessRecord("lake", 0))
    for at in range(5):
        won: list[int] = []

        def race(to: int, at: int = at, won: list[int] = won) -> None:
            try:
                witness.raise_to((at + 1) * 100, expected=at * 100)
                won.append(to)
            except ResyncNeeded:
                pass

        threads = [threading.Thread(target=race, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(won) == 1


def test_replacing_is_possible_when_a_person_asks_for_it(witness: Witness) -> None:
    witness.replace(WitnessRecord("lake", 7))
    assert witness.read() == WitnessRecord("lake", 7)


def test_a_torn_write_leaves_the_value_before_it(tmp_path: Path) -> None:
    witness = LocalWitness(tmp_path / "witness")
    witness.create(WitnessRecord("lake", 0))
    witness.raise_to(10, expected=0)
    witness.raise_to(20, expected=10)
    content = bytearray(witness.path.read_bytes())
    newest = content.index(b'"highest": 20')
    content[newest : newest + 20] = os.urandom(20)
    witness.path.write_bytes(content)
    assert witness.read().highest == 10
    witness.raise_to(30, expected=10)
    assert witness.read().highest == 30


@pytest.mark.parametrize("damage", [b"", b"\0" * 1024, b"garbage" * 200])
def test_a_damaged_one_is_refused(tmp_path: Path, damage: bytes) -> None:
    witness = LocalWitness(tmp_path / "witness")
    witness.create(WitnessRecord("lake", 5))
    witness.path.write_bytes(damage)
    with pytest.raises(WitnessUnreadable):
        witness.read()
