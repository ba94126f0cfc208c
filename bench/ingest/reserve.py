"""Reserving blocks against a bare loop of transactions: same tables, indexes, triggers and durability, by hand."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import lakes
from bench.measure import Bench, Measurement, in_turn, settle_disk
from bench.results import Figure, Goal, Samples
from strandline.core.types import Dataset
from strandline.lake import Lake, open_lake
from strandline.ledger.ingest import blocks, datasets

_PEER = "bare transactions on the same tables"
ON_SQLITE = Figure("reserve on SQLite, one process", "blocks/s", _PEER, Goal(0.6, "at least"))
ON_POSTGRES = Figure("reserve on PostgreSQL, 8 processes", "blocks/s", _PEER, Goal(0.6, "at least"))
PROCESSES = 8
ROWS = 1000

_UPDATE = "UPDATE sequence SET last = last + {p} RETURNING last"
_INSERT = (
    "INSERT INTO block (dataset_id, lo, hi, kind, batch_id, state, fence, lease_until, reserved_at, changed_at) "
    "VALUES ({p}, {p}, {p}, 'batch', {p}, 'reserved', 1, {p}, {p}, {p})"
)


def _new_ledger(home: Path, url: str = "ledger.db") -> None:
    """A lake whose ledger knows one dataset; reserving needs no table."""
    with lakes.new_lake(home, ledger=url) as lake, lake.ledger.write() as connection:
        datasets.add(connection, name="default.events", table_uuid="none")


def _reserve(lake: Lake, dataset: Dataset, batch: str) -> None:
    wanted = blocks.NewBlock(dataset.id, ROWS, batch, None)
    blocks.reserve(lake.ledger, lake.witness, wanted, lease_seconds=120)


def _bare(execute: Callable[[str, tuple[Any, ...]], Any], mark: str, batch: str) -> None:
    last = execute(_UPDATE.format(p=mark), (ROWS,)).fetchone()[0]
    now = time.time_ns() // 1000
    values = (1, last - ROWS + 1, last, batch, now + 120_000_000, now, now)
    execute(_INSERT.format(p=mark), values)


def on_sqlite(bench: Bench) -> dict[str, Samples]:
    count = bench.sized(500, 50)
    _new_ledger(bench.work / "ours")
    _new_ledger(bench.work / "bare")
    lake = open_lake(bench.work / "ours")
    dataset = lake.dataset("events")
    bare = _sqlite_like_ours(bench.work / "bare" / "ledger.db", lake)

    def ours(n: int) -> float:
        settle_disk()
        began = time.perf_counter()
        for i in range(count):
            _reserve(lake, dataset, f"{n}-{i}")
        return count / (time.perf_counter() - began)

    def peer(n: int) -> float:
        settle_disk()
        began = time.perf_counter()
        for i in range(count):
            bare.execute("BEGIN IMMEDIATE")
            _bare(bare.execute, "?", f"{n}-{i}")
            bare.execute("COMMIT")
        return count / (time.perf_counter() - began)

    ours(-1), peer(-1)  # warm-up
    taken, peer_taken = in_turn(bench, 7, ours, peer)
    return {ON_SQLITE.name: Samples(taken, peer_taken, {"blocks": count, "sqlite": sqlite3.sqlite_version})}


def _sqlite_like_ours(path: Path, lake: Lake) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    with lake.ledger.read() as ours:
        for pragma in ("journal_mode", "synchronous", "foreign_keys"):
            connection.execute(f"PRAGMA {pragma} = {ours.exec_driver_sql(f'PRAGMA {pragma}').scalar()}")
    return connection


def on_postgres(bench: Bench) -> dict[str, Samples]:
    from tests.servers import start_postgres

    each, rounds = bench.sized(100, 10), 7
    server = start_postgres()
    try:
        urls = (server.create_database(), server.create_database())
        for name, url in zip(("ours", "bare"), urls, strict=True):
            _new_ledger(bench.work / name, url)
        context = get_context("spawn")
        barrier, answers = context.Barrier(PROCESSES), context.SimpleQueue()
        arguments = (bench.work / "ours", urls[1], each, rounds + 1, barrier, answers)
        workers = [context.Process(target=_worker, args=(k, *arguments)) for k in range(PROCESSES)]
        bench.say(f"{PROCESSES} processes, {rounds} rounds of {each} blocks each")
        for worker in workers:
            worker.start()
        spans = [answers.get() for _ in workers]
        for worker in workers:
            worker.join()
    finally:
        server.server.stop()
    taken, peer_taken = (
        [_rate(each, [s[side][n] for s in spans]) for n in range(1, rounds + 1)] for side in ("ours", "bare")
    )
    return {
        ON_POSTGRES.name: Samples(
            taken, peer_taken, {"blocks": PROCESSES * each, "processes": PROCESSES, "fsync": "on"}
        )
    }


def _rate(each: int, spans: list[tuple[float, float]]) -> float:
    """The first begin to the last end; all processes read the same clock."""
    return len(spans) * each / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def _worker(k: int, home: Path, bare_url: str, each: int, rounds: int, barrier: Any, answers: Any) -> None:
    import psycopg

    lake = open_lake(home)
    dataset = lake.dataset("events")
    spans: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
    with psycopg.connect(bare_url, autocommit=False) as bare:
        for n in range(rounds):  # the first round is the warm-up
            barrier.wait(120)
            began = time.monotonic()
            for i in range(each):
                _reserve(lake, dataset, f"{k}-{n}-{i}")
            spans["ours"].append((began, time.monotonic()))
            barrier.wait(120)
            began = time.monotonic()
            for i in range(each):
                _bare(bare.execute, "%s", f"{k}-{n}-{i}")
                bare.commit()
            spans["bare"].append((began, time.monotonic()))
    answers.put(spans)


SQLITE = Measurement((ON_SQLITE,), on_sqlite)
POSTGRES = Measurement((ON_POSTGRES,), on_postgres)
