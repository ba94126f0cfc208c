"""A lane with a row that its sink refuses, as a small state machine, explored in full: deliverers and people who replay
rows, each free to stop for ever before and after every durable step, offers whose answer is lost or that arrive late, a
proxy that refuses what has landed, and a ledger that is copied and restored once.

The sink keeps ranges, as a receiver does: covered is a repeat, disjoint is new, anything else a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Explored, explore

Range = tuple[int, int]
BAD = 2
"""The row that the sink refuses, until somebody repairs it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Each can be taken away, to see what it is good for."""

    stores_the_split_before_its_parts_are_sent: bool = True
    writes_the_content_first: bool = True
    records_with_the_chunk: bool = True
    """In one transaction."""
    replays_in_its_own_lane: bool = True
    """And not in one for replays, whose ranges say nothing of those that were refused."""
    checks_the_token: bool = True


class Chunk(NamedTuple):
    rows: Range
    state: str  # planned, landed, empty


class Ledger(NamedTuple):
    mark: int = 0
    chunks: tuple[Chunk, ...] = ()
    """Of the open intent."""
    aside: tuple[tuple[int, str], ...] = ()
    """Number, and held, replaying or replayed."""
    token: int = 0

    def settle(self, rows: Range, state: str) -> Ledger:
        return self._replace(chunks=tuple(c._replace(state=state) if c.rows == rows else c for c in self.chunks))

    def move(self, number: int, state: str) -> Ledger:
        return self._replace(aside=tuple(sorted((dict(self.aside) | {number: state}).items())))


class Worker(NamedTuple):
    at: str = "idle"
    token: int = 0
    rows: Range = (0, 0)


IDLE = Worker()


class State(NamedTuple):
    workers: tuple[Worker, Worker] = (IDLE, IDLE)
    ledger: Ledger = Ledger()
    held: frozenset[Range] = frozenset()
    replays: frozenset[int] = frozenset()
    objects: frozenset[int] = frozenset()
    flying: Range | None = None
    healed: bool = False
    copy: Ledger | None = None
    restored: bool = False
    leases: int = 0
    fault: str = ""

    def worker(self, index: int, worker: Worker) -> State:
        pair = (worker, self.workers[1 - index])
        return self._replace(workers=pair if pair[0].token >= pair[1].token else (pair[1], pair[0]))


def covered(rows: Range, held: frozenset[Range]) -> bool:
    return all(any(lo <= n <= hi for lo, hi in held) for n in range(rows[0], rows[1] + 1))


def touches(rows: Range, held: frozenset[Range]) -> bool:
    return any(lo <= rows[1] and rows[0] <= hi for lo, hi in held)


def explored(rules: Rules, *, rows: int, leases: int, restores: bool = False) -> Explored[State]:
    model = Model(rules, rows, leases, restores)
    return explore(State(), model.steps, model.broken)


@dataclass(frozen=True)
class Model:
    rules: Rules
    rows: int
    leases: int
    restores: bool

    def broken(self, state: State) -> str:
        if any(covered((n, n), state.held) for n in state.replays):
            return "a row is there twice"
        aside = dict(state.ledger.aside)
        for n in range(1, state.ledger.mark + 1):
            kept = aside.get(n) in ("held", "replaying") and n in state.objects
            if not (covered((n, n), state.held) or n in state.replays or kept):
                return "a row is lost"
        return state.fault

    def steps(self, state: State) -> Iterator[State]:
        for index, worker in enumerate(state.workers):
            yield from self._work(state, index, worker)
            if worker.at != "idle":
                yield state.worker(index, IDLE)
        if state.flying is not None:
            yield self._land(state._replace(flying=None), state.flying)[0]
        if not state.healed and state.ledger.aside:
            yield state._replace(healed=True)
        if self.restores and state.copy is None:
            yield state._replace(copy=state.ledger)
        if state.copy is not None and not state.restored:
            yield state._replace(ledger=state.copy._replace(token=0), restored=True)

    def _land(self, state: State, rows: Range) -> tuple[State, str]:
        if covered(rows, state.held):
            return state, "landed"
        if touches(rows, state.held):
            return state, "conflict"
        if rows[0] <= BAD <= rows[1] and not state.healed:
            return state, "refused"
        return state._replace(held=state.held | {rows}), "landed"

    def _may(self, state: State, worker: Worker) -> bool:
        return state.ledger.token == worker.token or not self.rules.checks_the_token

    def _work(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if w.at == "idle":
            if state.leases < self.leases:
                token = state.leases + 1
                taken = state._replace(ledger=state.ledger._replace(token=token), leases=token)
                if state.ledger.mark < self.rows:
                    yield taken.worker(index, Worker("begin", token))
                if state.ledger.aside:
                    yield taken.worker(index, Worker("person", token))
            return
        step = getattr(self, f"_{w.at}")
        yield from step(state, index, w)

    # --- delivering ---

    def _begin(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if not self._may(state, w):
            yield state.worker(index, IDLE)
        elif state.ledger.chunks:
            yield self._ask(state, index, w)
        else:
            yield from self._plan(state, index, w)

    def _ask(self, state: State, index: int, w: Worker) -> State:
        ledger = state.ledger
        for chunk in ledger.chunks:
            if chunk.state == "planned" and covered(chunk.rows, state.held):
                ledger = ledger.settle(chunk.rows, "landed")
            elif chunk.state == "planned" and touches(chunk.rows, state.held):
                return self._conflict(state, index, w)
        return state._replace(ledger=ledger).worker(index, w._replace(at="next"))

    def _conflict(self, state: State, index: int, w: Worker) -> State:
        """The sink stops, and a person has it planned anew. Only a ledger that was restored may come to that."""
        if not self._may(state, w):
            return state.worker(index, IDLE)
        fault = "" if state.restored else "stopped for nothing"
        return state._replace(ledger=state.ledger._replace(chunks=()), fault=fault).worker(index, IDLE)

    def _plan(self, state: State, index: int, w: Worker) -> Iterator[State]:
        aside = set(dict(state.ledger.aside))
        fixed = {(n, n): "empty" for n in aside if not covered((n, n), state.held)} | dict.fromkeys(
            state.held, "landed"
        )
        for whole in (True, False):
            chunks: list[Chunk] = []
            at = state.ledger.mark + 1
            for lo, hi in [*sorted(r for r in fixed if r[1] >= at), (self.rows + 1, self.rows + 1)]:
                if at < lo:
                    gaps = [(at, lo - 1)] if whole else [(n, n) for n in range(at, lo)]
                    chunks += (Chunk(g, "planned") for g in gaps)
                if lo <= self.rows:
                    chunks.append(Chunk((max(lo, at), hi), fixed[lo, hi]))
                at = max(at, hi + 1)
            ledger = state.ledger._replace(chunks=tuple(chunks))
            yield state._replace(ledger=ledger).worker(index, w._replace(at="next"))

    def _next(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if not self._may(state, w):
            yield state.worker(index, IDLE)
            return
        planned = [c.rows for c in state.ledger.chunks if c.state == "planned"]
        for rows in planned:
            yield state.worker(index, w._replace(at="offer", rows=rows))
        if not planned and state.ledger.chunks:
            yield state._replace(ledger=state.ledger._replace(mark=self.rows, chunks=())).worker(index, IDLE)

    def _offer(self, state: State, index: int, w: Worker) -> Iterator[State]:
        after, outcome = self._land(state, w.rows)
        match outcome:
            case "conflict":
                yield self._conflict(state, index, w)
            case "refused":
                yield state.worker(index, w._replace(at="refused"))
            case _:
                yield after.worker(index, w._replace(at="ack"))
                yield after.worker(index, IDLE)  # its answer is lost
                yield after.worker(index, w._replace(at="refused"))  # and the repeat refused on its way
        if state.flying is None:  # it is under way, and its repeat is refused; or nobody waits for it
            yield state._replace(flying=w.rows).worker(index, w._replace(at="refused"))
            yield state._replace(flying=w.rows).worker(index, IDLE)

    def _refused(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if covered(w.rows, state.held):
            yield state.worker(index, w._replace(at="ack"))
        elif touches(w.rows, state.held):
            yield self._conflict(state, index, w)
        elif w.rows[0] < w.rows[1]:
            yield self._split(state, index, w)
        else:
            yield state.worker(index, w._replace(at="content" if self.rules.writes_the_content_first else "record"))

    def _split(self, state: State, index: int, w: Worker) -> State:
        if not self._may(state, w):
            return state.worker(index, IDLE)
        lo, hi = w.rows
        middle = (lo + hi) // 2
        if not self.rules.stores_the_split_before_its_parts_are_sent:
            return state.worker(index, w._replace(at="part", rows=(lo, lo)))
        parts = (Chunk((lo, middle), "planned"), Chunk((middle + 1, hi), "planned"))
        chunks = [p for c in state.ledger.chunks for p in (parts if c.rows == w.rows else (c,))]
        return state._replace(ledger=state.ledger._replace(chunks=tuple(chunks))).worker(index, w._replace(at="next"))

    def _part(self, state: State, index: int, w: Worker) -> Iterator[State]:
        """Of a split that nobody has stored: only its first row is gone through here."""
        yield self._land(state, w.rows)[0].worker(index, w._replace(at="next"))

    def _content(self, state: State, index: int, w: Worker) -> Iterator[State]:
        following = "record" if self.rules.writes_the_content_first else "next"
        objects = state.objects | {w.rows[0]}
        yield state._replace(objects=objects).worker(index, w._replace(at=following))

    def _record(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if not self._may(state, w):
            yield state.worker(index, IDLE)
            return
        number = w.rows[0]
        ledger = state.ledger.settle(w.rows, "empty")
        if self.rules.records_with_the_chunk and number not in dict(ledger.aside):
            ledger = ledger.move(number, "held")
        following = "next" if self.rules.writes_the_content_first else "content"
        yield state._replace(ledger=ledger).worker(index, w._replace(at=following))

    def _ack(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if not self._may(state, w):
            yield state.worker(index, IDLE)
        else:
            yield state._replace(ledger=state.ledger.settle(w.rows, "landed")).worker(index, w._replace(at="next"))

    # --- replaying ---

    def _person(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if not self._may(state, w):
            yield state.worker(index, IDLE)
            return
        for number, known in state.ledger.aside:
            rows = (number, number)
            if known == "replayed":
                continue
            if number in state.replays or covered(rows, state.held):
                yield state.worker(index, w._replace(at="replayed", rows=rows))
            elif number in state.objects:
                ledger = state.ledger.move(number, "replaying")
                yield state._replace(ledger=ledger).worker(index, w._replace(at="resend", rows=rows))

    def _resend(self, state: State, index: int, w: Worker) -> Iterator[State]:
        number = w.rows[0]
        if number == BAD and not state.healed and number not in state.replays:
            ledger = state.ledger.move(number, "held") if self._may(state, w) else state.ledger
            yield state._replace(ledger=ledger).worker(index, IDLE)
            return
        landed = state._replace(replays=state.replays | {number})
        if self.rules.replays_in_its_own_lane:
            landed, _ = self._land(state, w.rows)
        yield landed.worker(index, w._replace(at="replayed"))
        yield landed.worker(index, IDLE)  # its answer is lost

    def _replayed(self, state: State, index: int, w: Worker) -> Iterator[State]:
        if self._may(state, w):
            ledger = state.ledger.move(w.rows[0], "replayed")
            state = state._replace(ledger=ledger, objects=state.objects - {w.rows[0]})
        yield state.worker(index, IDLE)
