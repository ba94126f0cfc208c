"""The delivery of one lane as a small state machine, explored in full: every interleaving of two deliverers, each free
to stop for ever or to go on late before and after every durable step, with rows that are sealed meanwhile, a row that a
user deletes, a consumer, and a ledger or a sink that is copied and restored once.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.delivery_state import (
    IDLE,
    Chunk,
    Cut,
    Deliverer,
    Intent,
    Ledger,
    Range,
    Rules,
    Sink,
    State,
    World,
    is_covered,
    is_lost,
    overlap,
    rows_of,
    tilings,
)
from tests.model.explore import Explored, explore


def explored(world: World, rules: Rules, states_max: int = 3_000_000) -> Explored[State]:
    model = Model(world, rules)
    return explore(State(), model.steps, model.broken, states_max)


class Model:
    def __init__(self, world: World, rules: Rules) -> None:
        self.world = world
        self.rules = rules
        self.rested: set[State] = set()

    def steps(self, state: State) -> Iterator[State]:
        for index, deliverer in enumerate(state.deliverers):
            if index and deliverer == state.deliverers[0]:
                break
            yield from self._deliver(state, index, deliverer)
            if deliverer.at != "idle" and state.leases < self.world.leases:  # else: as good as one that is stopped
                yield from self._kill(state, index, deliverer)
        if state.flying is not None:
            yield self._land(state._replace(flying=None), *state.flying)[0]
        yield from self._consume(state)
        yield from self._surroundings(state)

    def broken(self, state: State) -> str:
        return state.fault or self._unrest(state)

    # What deliverers do, one durable step at a time.

    def _deliver(self, state: State, index: int, d: Deliverer) -> Iterator[State]:
        match d.at:
            case "idle":
                yield from self._take_lease(state, index)
            case "leased":
                yield self._fence(state, d).with_deliverer(index, d._replace(at="fenced"))
            case "fenced":
                yield self._begin(state, index, d)
            case "reading":
                yield self._read_on(state, index, d)
            case "asked":
                yield from self._plan(state, index, d)
            case "cut":
                moved = state.sink.mark != d.held_mark and self.rules.looks_again_after_fixing_the_cut
                yield state.with_deliverer(index, IDLE) if moved else self._store(state, index, d)
            case "sending":
                yield from self._look(state, index, d)
            case "offering":
                yield from self._offer(state, index, d)
            case "regretting":
                yield self._regret(state, index, d)
            case "settled":
                yield self._acknowledge(state, index, d)
            case "marking":
                yield self._mark(state, index, d)
            case "closing":
                yield self._close(state, index, d)

    def _kill(self, state: State, index: int, d: Deliverer) -> Iterator[State]:
        yield state.with_deliverer(index, IDLE)
        if d.at == "offering" and self.world.kind != "files" and self.world.requests_linger and state.flying is None:
            assert d.chunk is not None
            yield state.with_deliverer(index, IDLE)._replace(flying=(d.token, d.chunk.rows))

    def _holds(self, state: State, d: Deliverer) -> bool:
        return state.ledgers[d.ledger].token == d.token or not self.rules.checks_the_token

    def _take_lease(self, state: State, index: int) -> Iterator[State]:
        ledger = state.ledgers[0]
        if state.leases < self.world.leases and not ledger.stopped and (ledger.intent or ledger.mark < state.sealed):
            token = state.leases + 1
            taken = state.with_ledger(0, ledger._replace(token=token))._replace(leases=token)
            first = "leased" if self.world.kind == "files" and self.rules.fences else "fenced"
            yield taken.with_deliverer(index, Deliverer(first, token))

    def _fence(self, state: State, d: Deliverer) -> State:
        return state.with_sink(state.sink._replace(folder=d.token))

    def _begin(self, state: State, index: int, d: Deliverer) -> State:
        """Go on with what is open, or ask the sink: here the first half of the answer."""
        ledger = state.ledgers[d.ledger]
        late = self.rules.asks_for_its_lease_after_fencing and not self._holds(state, d)
        if ledger.stopped or late:
            return state.with_deliverer(index, IDLE)
        if ledger.intent is not None:
            return state.with_deliverer(index, self._sending(d, ledger.intent))
        after, until = ledger.mark, state.sealed
        if not rows_of((after + 1, until), state.deleted, self.world.others):
            if self._holds(state, d):  # nothing for this lane: its mark moves in the plan of others
                state = state.with_ledger(d.ledger, ledger._replace(mark=until))
            return state.with_deliverer(index, IDLE)
        d = d._replace(at="reading", intent=Intent(after, until), last=ledger.last)
        if not self.rules.asks_what_is_held:
            return state.with_deliverer(index, d._replace(at="asked"))
        if self.rules.reads_marks_after_names:
            return state.with_deliverer(index, d._replace(held=state.sink.objects))
        return state.with_deliverer(index, d._replace(held_mark=state.sink.mark))

    def _read_on(self, state: State, index: int, d: Deliverer) -> State:
        if self.rules.reads_marks_after_names:
            d = d._replace(held_mark=state.sink.mark, at="asked")
        else:
            d = d._replace(held=state.sink.objects, at="asked")
        if self._is_lacking(d.last, d.held_mark, d.held):
            return self._stop(state, index, d)
        return state.with_deliverer(index, d)

    def _is_lacking(self, last: tuple[Range, ...], mark: int, objects: frozenset[Range]) -> bool:
        if not last or not self.rules.stops_when_the_last_is_lacking:
            return False
        if not self.world.keeps_ranges and self.rules.a_name_does_not_stand_for_the_mark:
            return mark < last[-1][1]
        return not all(is_covered(rows, mark, objects) for rows in last)

    def _stop(self, state: State, index: int, d: Deliverer) -> State:
        ledger = state.ledgers[d.ledger]
        if not self._holds(state, d):
            return state.with_deliverer(index, IDLE)
        fault = "" if state.sink_restored or len(state.ledgers) > 1 else "stopped for nothing"
        stopped = state.with_ledger(d.ledger, ledger._replace(stopped=True))
        return stopped._replace(fault=fault).with_deliverer(index, IDLE)

    def _plan(self, state: State, index: int, d: Deliverer) -> Iterator[State]:
        assert d.intent is not None
        fixes = self.world.kind == "s3" and self.rules.fixes_the_cut_at_the_sink and d.intent.until > d.held_mark
        key = d.held_mark if self.rules.the_cut_hangs_on_the_mark_of_the_sink else d.intent.after
        cut = next((c for c in state.sink.cuts if c.mark == key), None) if fixes else None
        if cut is not None:
            yield self._adopt(state, index, d, cut)
            return
        for tiles in tilings(d.intent.after, d.intent.until, (d.held_mark, d.held), self.rules.subtracts):
            planned = d._replace(intent=d.intent._replace(chunks=tuple(Chunk(0, r, s) for r, s in tiles)))
            if fixes:
                new = Cut(key, d.intent.until, tuple(r for r, _ in tiles if r[1] > d.held_mark))
                sink = state.sink._replace(cuts=tuple(sorted((*state.sink.cuts, new))))
                yield state.with_sink(sink).with_deliverer(index, planned._replace(at="cut"))
            else:
                yield self._store(state, index, planned)

    def _adopt(self, state: State, index: int, d: Deliverer, cut: Cut) -> State:
        """Another planned from the same mark of the sink, perhaps on a ledger that is gone: his cut it is."""
        assert d.intent is not None
        after = d.intent.after
        if cut.until <= after:  # all that he wanted to send was deleted since: nothing to wait for
            sink = state.sink._replace(mark=max(state.sink.mark, after))
            return state.with_sink(sink).with_deliverer(index, IDLE)
        if any(lo <= after < hi for lo, hi in cut.ranges):  # only where two ledgers are alive
            return self._stop(state, index, d)
        chunks = [Chunk(0, rows, "planned") for rows in cut.ranges if rows[1] > after]
        first = chunks[0].rows[0]
        if after + 1 < first:
            state_before = "landed" if d.held_mark > after else "empty"
            chunks.insert(0, Chunk(0, (after + 1, first - 1), state_before))
        intent = Intent(after, cut.until, tuple(chunks))
        return state.with_deliverer(index, d._replace(at="cut", intent=intent))

    def _store(self, state: State, index: int, d: Deliverer) -> State:
        ledger = state.ledgers[d.ledger]
        assert d.intent is not None
        if not self._holds(state, d) or ledger.intent is not None or ledger.mark != d.intent.after:
            return state.with_deliverer(index, IDLE)
        chunks = tuple(c._replace(id=ledger.ids + n) for n, c in enumerate(d.intent.chunks, 1))
        intent = d.intent._replace(chunks=chunks)
        if self.rules.pins_the_cut:
            state = state.with_ledger(d.ledger, ledger._replace(intent=intent, ids=ledger.ids + len(chunks)))
        return state.with_deliverer(index, self._sending(d, intent))

    def _sending(self, d: Deliverer, intent: Intent) -> Deliverer:
        last = "marking" if self.rules.marks_the_sink_first else "closing"
        return Deliverer("sending" if intent.planned() else last, d.token, d.ledger, intent)

    def _look(self, state: State, index: int, d: Deliverer) -> Iterator[State]:
        """Chunks are sent in any order: tasks run side by side."""
        assert d.intent is not None
        for chunk in d.intent.planned():
            found = self._is_held(state.sink, chunk.rows)
            records = self.world.keeps_ranges and self.rules.records_empty_ranges
            if not records and not rows_of(chunk.rows, state.deleted, self.world.others):
                asked = found and self.rules.asks_before_it_calls_a_chunk_empty
                settled = chunk._replace(state="landed" if asked else "empty")
                yield state.with_deliverer(index, d._replace(at="settled", chunk=settled))
            elif found:
                yield state.with_deliverer(index, d._replace(at="settled", chunk=chunk._replace(state="landed")))
            elif self.world.kind != "s3" and self._is_partly_held(state.sink, chunk.rows):
                yield self._cut_anew(state, index, d)
            else:
                yield state.with_deliverer(index, d._replace(at="offering", chunk=chunk))

    def _is_held(self, sink: Sink, rows: Range) -> bool:
        if self.world.kind == "s3":  # the name alone is asked for
            return rows[1] <= sink.mark or rows in sink.objects
        return is_covered(rows, sink.mark, sink.objects)

    def _is_partly_held(self, sink: Sink, rows: Range) -> bool:
        reaches_in = rows[0] <= sink.mark and self.rules.a_mark_within_a_range_is_a_conflict
        return reaches_in or any(overlap(rows, o) for o in sink.objects)

    def _cut_anew(self, state: State, index: int, d: Deliverer) -> State:
        """A conflict: what is pinned can never land. Nothing of it is under way that could, either: give it up."""
        ledger = state.ledgers[d.ledger]
        if self._holds(state, d) and self.rules.pins_the_cut:
            state = state.with_ledger(d.ledger, ledger._replace(intent=None))
        return state.with_deliverer(index, IDLE)

    def _offer(self, state: State, index: int, d: Deliverer) -> Iterator[State]:
        assert d.chunk is not None
        after, outcome = self._land(state, d.token, d.chunk.rows)
        if outcome == "conflict":
            yield self._cut_anew(state, index, d)
        elif outcome == "superseded":
            yield state.with_deliverer(index, IDLE)
        else:
            created = after.sink is not state.sink
            regrets = self.world.kind == "s3" and created and not self.rules.lets_lie_what_it_put
            at = "regretting" if regrets else "settled"
            settled = after.with_deliverer(index, d._replace(at=at, chunk=d.chunk._replace(state="landed")))
            yield settled
            if self.world.tasks_run_twice and state.flying is None:
                yield settled._replace(flying=(d.token, d.chunk.rows))

    def _regret(self, state: State, index: int, d: Deliverer) -> State:
        """Someone marked the sink since it looked: taken for a sign that the object is a repeat."""
        assert d.chunk is not None
        if state.sink.mark < d.chunk.rows[1]:
            return state.with_deliverer(index, d._replace(at="settled"))
        state = state.with_sink(state.sink._replace(objects=state.sink.objects - {d.chunk.rows}))
        return state.with_deliverer(index, IDLE)

    def _land(self, state: State, token: int, rows: Range) -> tuple[State, str]:
        """The moment of truth, as each kind of sink knows it: link, conditional put, commit."""
        sink = state.sink
        if self.world.kind == "files" and self.rules.fences and sink.folder != token:
            return state, "superseded"
        if self.world.keeps_ranges:
            if is_covered(rows, 0, sink.objects):
                return state, "landed"
            if any(overlap(rows, o) for o in sink.objects):
                return state, "conflict"
        if rows in sink.objects:
            return state, "landed"
        if any(overlap(rows, o) for o in sink.objects):
            state = state._replace(fault="ranges overlap")
        return state.with_sink(sink._replace(objects=sink.objects | {rows})), "landed"

    def _acknowledge(self, state: State, index: int, d: Deliverer) -> State:
        assert d.chunk is not None and d.intent is not None
        ledger = state.ledgers[d.ledger]
        if not self._holds(state, d):
            return state.with_deliverer(index, IDLE)
        if self.rules.pins_the_cut:
            if ledger.intent is None or all(c.id != d.chunk.id for c in ledger.intent.chunks):
                return state.with_deliverer(index, IDLE)
            state = state.with_ledger(d.ledger, ledger._replace(intent=ledger.intent.settle(d.chunk.id, d.chunk.state)))
        said = d.chunk.state == "empty" and len(state.ledgers) == 1 and not state.sink_restored
        if said and self.world.kind != "s3" and d.chunk.rows in state.sink.objects:
            state = state._replace(fault="called empty what is held")
        intent = d.intent.settle(d.chunk.id, d.chunk.state)
        return state.with_deliverer(index, self._sending(d, intent))

    def _mark(self, state: State, index: int, d: Deliverer) -> State:
        assert d.intent is not None
        sink = state.sink
        if self.world.kind == "files" and self.rules.fences and self.rules.takes_its_folder_away_before_the_mark:
            if sink.folder != d.token:  # not there: superseded
                return state.with_deliverer(index, IDLE)
            sink = sink._replace(folder=0)
        if self.rules.looks_again_before_the_mark:
            last = state.ledgers[d.ledger].last if self.rules.marks_the_sink_first else ()
            lacking = self._is_lacking(last, sink.mark, sink.objects)
            if lacking or not all(is_covered(r, sink.mark, sink.objects) for r in d.intent.landed()):
                return self._stop(state, index, d)
        if is_lost(state, self.world, d.intent.until):
            state = state._replace(fault="a row is lost")
        if not self.world.keeps_ranges:
            mark = max(sink.mark, d.intent.until)
            sink = sink._replace(mark=mark, cuts=tuple(c for c in sink.cuts if c.mark >= mark))
        after = d._replace(at="closing") if self.rules.marks_the_sink_first else IDLE
        return state.with_sink(sink).with_deliverer(index, after)

    def _close(self, state: State, index: int, d: Deliverer) -> State:
        assert d.intent is not None
        ledger, intent = state.ledgers[d.ledger], d.intent
        after = IDLE if self.rules.marks_the_sink_first else d._replace(at="marking")
        open_ = ledger.intent if self.rules.pins_the_cut else intent
        if not self._holds(state, d) or open_ is None or open_.planned() or ledger.mark != intent.after:
            return state.with_deliverer(index, IDLE)
        last = open_.landed() or ledger.last
        if not self.rules.last_is_the_whole_intent:
            last = last[-1:]
        closed = ledger._replace(mark=intent.until, intent=None, last=last)
        return state.with_ledger(d.ledger, closed).with_deliverer(index, after)

    # What happens around them.

    def _consume(self, state: State) -> Iterator[State]:
        world, sink = self.world, state.sink
        if not world.consumes or world.keeps_ranges:
            return
        for lo, hi in sorted(sink.objects):
            if (world.waits_for_the_mark and hi > sink.mark) or (world.keeps_a_cursor and hi <= state.cursor):
                continue
            rows = {n for n in range(lo, hi + 1) if n not in world.others}
            yield state._replace(
                sink=sink._replace(objects=sink.objects - {(lo, hi)}) if world.takes_away else sink,
                consumed=state.consumed | rows,
                cursor=max(state.cursor, hi) if world.keeps_a_cursor else 0,
                fault=state.fault or ("a row was seen twice" if rows & state.consumed else ""),
            )
            if world.keeps_a_cursor:
                break

    def _surroundings(self, state: State) -> Iterator[State]:
        world = self.world
        if state.sealed < world.rows:
            yield state._replace(sealed=state.sealed + 1)
        if world.deletes and not state.deleted and state.sealed >= world.deletes:
            yield state._replace(deleted=world.deletes)
        if world.ledger_restored and not state.restored:
            if state.copy is None:
                yield state._replace(copy=state.ledgers[0])
            elif state.copy != state.ledgers[0]:
                yield from self._restore(state, state.copy)
        if world.sink_restored and not state.sink_restored:
            if state.sink_copy is None:
                yield state._replace(sink_copy=state.sink)
            elif state.sink_copy != state.sink:
                yield state._replace(sink=state.sink_copy, sink_copy=None, sink_restored=True)

    def _restore(self, state: State, copy: Ledger) -> Iterator[State]:
        now = state.ledgers[0]
        if self.rules.a_lease_that_ran_out_is_none and copy.token != now.token:
            copy = copy._replace(token=0)  # another could take it only when it had run out
        restored = state._replace(copy=None, restored=True)
        yield restored._replace(ledgers=(copy,))
        if self.world.both_ledgers_live:
            astray = tuple(d if d.at == "idle" else d._replace(ledger=1) for d in state.deliverers)
            yield restored._replace(ledgers=(copy, now), deliverers=astray)

    def _unrest(self, state: State) -> str:
        """One deliverer that is left alone must bring everything to the sink, or stop for a reason."""
        calm = State(
            sealed=state.sealed,
            deleted=state.deleted,
            ledgers=state.ledgers,
            sink=state.sink,
            sink_restored=state.sink_restored,
            consumed=state.consumed,
            cursor=state.cursor,
            leases=-20,  # as many as it needs, and none of them used before
        )
        passed: list[State] = []
        while calm not in self.rested:
            passed.append(calm)
            index = 0 if calm.deliverers[0].at != "idle" else 1
            following = next(self._deliver(calm, index, calm.deliverers[index]), None)
            if following is None:
                break
            if following.fault or following.leases == 0:
                return following.fault or "it never comes to rest"
            calm = following
        else:
            self.rested.update(passed)
            return ""
        ledger = calm.ledgers[0]
        if not ledger.stopped and ledger.mark != calm.sealed:
            return "it never comes to rest"
        if not ledger.stopped and not calm.sink_restored and is_lost(calm, self.world, calm.sealed):
            return "a row is lost"
        self.rested.update(passed)
        return ""
