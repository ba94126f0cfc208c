"""One dataset that cannot be settled costs a process little time, and makes no other thread wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.core.types import Anchor, DatasetId, SnapshotId
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG, SnapshotView, TableView
from strandline.ingest import facade
from strandline.ingest.dataset_backoff import WAIT_FACTOR, WAIT_SECONDS_MAX, DatasetBackoff
from strandline.ingest.facade import Ingestion
from strandline.ingest.table_peek import needs_no_recovery

SLOW, QUICK = DatasetId(1), DatasetId(2)


def test_a_dataset_waits_the_longer_the_longer_its_failure_took() -> None:
    now = 1000.0
    backoff = DatasetBackoff(lambda: now)
    assert not backoff.is_waiting(SLOW)
    backoff.failed(SLOW, now - 10)
    backoff.failed(QUICK, now)
    assert backoff.is_waiting(SLOW) and not backoff.is_waiting(QUICK)
    now += 10 * WAIT_FACTOR - 1
    assert backoff.is_waiting(SLOW)
    now += 1
    assert not backoff.is_waiting(SLOW)
    backoff.failed(SLOW, now - 10_000)
    now += WAIT_SECONDS_MAX
    assert not backoff.is_waiting(SLOW), "it is never given up"
    backoff.failed(SLOW, now - 10)
    backoff.succeeded(SLOW)
    assert not backoff.is_waiting(SLOW)
    backoff.failed(SLOW, now - 10)
    backoff.forget()
    assert not backoff.is_waiting(SLOW)


@pytest.mark.parametrize("asks", ["context", "catch_up"])
def test_while_one_thread_recovers_again_no_other_waits_for_it(monkeypatch: pytest.MonkeyPatch, asks: str) -> None:
    began, release = threading.Event(), threading.Event()
    calls: list[int] = []

    def recover(work: Any) -> Any:
        calls.append(threading.get_ident())
        if len(calls) > 1:
            began.set()
            assert release.wait(60)
        return SimpleNamespace(troubled=["default.damaged"], held=[])

    monkeypatch.setattr(facade, "SETTLE_AGAIN_SECONDS", 0)
    monkeypatch.setattr("strandline.ingest.recover.recover", recover)
    for name in ("resync.run.resync_ledger", "resync.postponed.resync_postponed"):
        monkeypatch.setattr(f"strandline.ingest.{name}", lambda *_: [])
    monkeypatch.setattr(facade.sequence, "read", lambda connection: SimpleNamespace(last=7))
    monkeypatch.setattr(facade.restored_blocks, "postponed", lambda connection: ["a dataset"])
    ledger = cast(Any, SimpleNamespace(read=lambda: threading.RLock()))
    witness = cast(Any, SimpleNamespace(read=lambda: SimpleNamespace(highest=7)))
    context = cast(Any, SimpleNamespace(backoff=DatasetBackoff()))
    ingestion = Ingestion(ledger, witness, cast(Any, None), lambda: context)
    ingestion.recover()

    def ask() -> Any:
        return ingestion.context if asks == "context" else ingestion.catch_up()

    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(ask)
            assert began.wait(60)
            second = pool.submit(ask).result(60)
            assert not first.done() and len(calls) == 2, "the first one is still at it"
        finally:
            release.set()
        assert second is first.result(60) is (context if asks == "context" else None)
    assert len(calls) == 2


def test_iceberg_is_not_asked_to_load_a_table_that_leaves_recovery_nothing_to_do() -> None:
    def view(**refs: int) -> TableView:
        snapshots = {SnapshotId(n): SnapshotView(SnapshotId(n), None, "append", None, 0, {}, n) for n in (1, 2)}
        named = {name.replace("tag", SETTLED_TAG): SnapshotId(n) for name, n in refs.items()}
        return TableView("u", "file:/t", 2, {}, named, snapshots, {"fields": []}, 0)

    known = Anchor(SnapshotId(2), 2)
    assert needs_no_recovery(view(), None)
    assert needs_no_recovery(view(main=2, tag=2), known)
    assert not needs_no_recovery(view(main=2, tag=2), None), "the ledger does not know of the tag"
    assert not needs_no_recovery(view(main=2, tag=1), known), "main has moved on"
    assert not needs_no_recovery(view(main=2), known), "somebody removed the tag"
    assert not needs_no_recovery(view(main=2, tag=2, sl_7=1), known), "a stray branch"
