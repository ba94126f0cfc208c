"""Lists and discards quarantined rows. `replay` sends them again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strandline.core.delivery_types import RefusedRow, SinkRecord
from strandline.core.errors import FailedError, RefusedError, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.types import Dataset
from strandline.deliver.context import DeliverContext
from strandline.deliver.manage_sinks import alone
from strandline.deliver.quarantine.content import QuarantineObjects, in_json, open_objects, unpacked
from strandline.ledger import audit
from strandline.ledger.deliver import quarantine, sinks
from strandline.ledger.deliver.quarantine import NOT_DELIVERED, Quarantined, QuarantineState
from strandline.ledger.engine import Connection

_SHOWN_BYTES_MAX = 1 << 20  # the content of a larger row is not shown: its object can be read
_PAGE_BYTES_MAX = 8 << 20  # of all contents of a page
_NUMBERS_NAMED_MAX = 100  # in one event

OnQuarantinedRows = Callable[[int, int], None]  # rows handled, rows in all


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    sink: str
    row: Quarantined
    place: str  # its object
    content: Any  # the row itself; None if it was not read
    problem: str | None = None  # why its content cannot be shown
    omitted: bool = False  # its content was not asked for, or not in time


def list_rows(
    context: DeliverContext, record: SinkRecord, *, settled_too: bool, contents_max: int
) -> list[QuarantinedRow]:
    """The rows of all generations by sequence number; the first `contents_max` with their content."""
    objects = open_objects(context.config)
    rows = context.ledger.query(quarantine.list_quarantined, record, None if settled_too else NOT_DELIVERED)
    found = []
    for n, row in enumerate(rows):
        content, problem = _content(objects, row) if n < contents_max else (None, None)
        found.append(QuarantinedRow(record.name, row, objects.place(row.object), content, problem))
    return found


def list_page(
    context: DeliverContext, records: Sequence[SinkRecord], *, settled_too: bool, after: int | None, rows_max: int
) -> list[QuarantinedRow]:
    """Rows of these sinks by id, without content, from the ledger; `after` is the last id of the previous page."""
    objects, names = open_objects(context.config), {record.id: record.name for record in records}
    states = None if settled_too else NOT_DELIVERED
    rows = context.ledger.query(quarantine.page, list(names), states=states, after=after, rows_max=rows_max)
    found = [QuarantinedRow(names[r.sink], r, objects.place(r.object), None) for r in rows]
    return [replace(q, problem=_NOT_READ, omitted=True) if q.row.state in NOT_DELIVERED else q for q in found]


def read_contents(context: DeliverContext, page: Sequence[QuarantinedRow]) -> Iterator[QuarantinedRow]:
    """The same rows, one after the other, with their content as far as a page has room for it."""
    objects, left = open_objects(context.config), _PAGE_BYTES_MAX
    for q in page:
        if not q.omitted:
            yield q
        elif q.row.size > min(left, _SHOWN_BYTES_MAX):
            yield replace(q, problem=_TOO_LARGE if q.row.size > _SHOWN_BYTES_MAX else _NO_ROOM)
        else:
            left -= q.row.size
            content, problem = _content(objects, q.row)
            yield replace(q, content=content, problem=problem, omitted=False)


_TOO_LARGE = "too large to be shown here"
_NO_ROOM = "not read: the contents of a page are too large together; ask for fewer rows"
_NOT_READ = "not read in time: the warehouse is slow, or does not answer"


def _content(objects: QuarantineObjects, row: Quarantined) -> tuple[Any, str | None]:
    if row.state not in NOT_DELIVERED:
        return None, None
    if row.size > _SHOWN_BYTES_MAX:
        return None, _TOO_LARGE
    try:
        body = objects.get(row.object)
        if body is None:
            return None, "its object is gone"
        return in_json(unpacked(body, row.object), row.form), None
    except FailedError as e:
        return None, e.message
    except ValueError as e:  # only the JVM can spell it
        return None, f"it cannot be shown here: {e}"


def chosen(rows: Sequence[Quarantined], numbers: Sequence[int] | None, name: str) -> list[Quarantined]:
    """The rows with these sequence numbers, or all. Raises UsageError for a number that is not among them."""
    if numbers is None:
        return list(rows)
    by_number = {int(r.seq): r for r in rows}
    if unknown := [n for n in numbers if n not in by_number]:
        raise UsageError(
            f"sink {name} has no row {unknown[0]} in quarantine", hint=f"See `strandline sink quarantine list {name}`."
        )
    return [by_number[n] for n in sorted(set(numbers))]


def rows_to_discard(context: DeliverContext, record: SinkRecord, numbers: Sequence[int] | None) -> list[Quarantined]:
    """What `discard` discards; changes nothing. Raises RefusedError for a row that may have landed."""
    known = context.ledger.query(quarantine.list_quarantined, record, NOT_DELIVERED)
    rows = chosen(known, numbers, record.name)
    for row in rows:
        if row.state is QuarantineState.REPLAYING:
            raise _may_have_landed(record.name, row)
    return rows


def discard(
    context: DeliverContext,
    name: str,
    numbers: Sequence[int] | None,
    on_progress: OnQuarantinedRows = lambda done, total: None,
) -> list[Quarantined]:
    """Discards rows, some at a time: in the ledger first, then their content. `on_progress` may raise before each step;
    what was discarded until then stays so. Raises RefusedError for a row that may have landed."""
    record = context.ledger.query(sinks.get, name)
    objects = open_objects(context.config)
    with alone(context, record):
        rows = rows_to_discard(context, record, numbers)
        for at in range(0, len(rows), _NUMBERS_NAMED_MAX):
            on_progress(at, len(rows))
            some = rows[at : at + _NUMBERS_NAMED_MAX]
            context.ledger.change(_discard, name, some)
            for row in some:
                objects.remove(row.object)
    return rows


def _discard(connection: Connection, name: str, rows: Sequence[Quarantined]) -> None:
    _record_discard(connection, name, rows)
    for row in rows:
        if not quarantine.discard_in(connection, row.id):
            raise _may_have_landed(name, row)


@dataclass(frozen=True, slots=True)
class QuarantineForPurge:
    """The quarantined rows of a dataset, those of removed sinks included."""

    context: DeliverContext

    def of_dataset(self, dataset: Dataset) -> list[RefusedRow]:
        return [
            RefusedRow(
                row.id, sink, removed, row.generation, row.partition, row.seq, row.size,
                row.state is QuarantineState.REPLAYING, partial(self._content, row),
            )
            for sink, removed, row in self._rows(dataset)
        ]  # fmt: skip

    def discard(self, dataset: Dataset, ids: Collection[int]) -> list[str]:
        """Discards rows by their ids in the ledger, of any sink. The caller holds the leases of the sinks that are not
        removed. Says which rows stay: they were sent again, and a replay can still find out whether they landed."""
        objects = open_objects(self.context.config)
        wanted = [one for one in self._rows(dataset) if one[2].id in ids]
        left = []
        for name in sorted({sink.name for sink, _, _ in wanted}):
            self.context.ledger.change(_record_discard, name, [row for sink, _, row in wanted if sink.name == name])
        for sink, removed, row in wanted:
            if not quarantine.discard(self.context.ledger, row.id) and not removed:
                left.append(
                    f"row {row.seq} was sent to {sink.name} again, and whether it landed is not known: "
                    f"`strandline sink quarantine replay {sink.name} {row.seq}` finds out"
                )
            else:
                objects.remove(row.object)
        self._remove_leftovers(dataset, objects)
        return left

    def _rows(self, dataset: Dataset) -> list[tuple[SinkRecord, bool, Quarantined]]:
        """The rows whose content is still stored, each with its sink and whether that was removed."""
        with self.context.ledger.read() as connection:
            known = {r.id: (r, removed) for r, removed in sinks.list_with_removed(connection, dataset.id)}
            rows = quarantine.of_dataset(connection, dataset.id, NOT_DELIVERED)
        return [(*known[row.sink], row) for row in rows]

    def _content(self, row: Quarantined) -> dict[str, Any] | None:
        """The row's values by column; an empty dict if its object is gone, and None if its content is not known."""
        body = open_objects(self.context.config).get(row.object)
        if body is None:
            return {}
        if row.form not in ("rows", "jsonl"):
            return None  # a line without the names of its columns
        try:
            found = in_json(unpacked(body, row.object), row.form)
        except (FailedError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _remove_leftovers(self, dataset: Dataset, objects: QuarantineObjects) -> None:
        """Removes objects without a row in the ledger: a deliverer or command died between object and ledger. The
        caller holds the leases, so nobody is quarantining rows meanwhile."""
        known = self.context.ledger.query(sinks.list_with_removed, dataset.id)
        found = [name for instance in sorted({r.instance for r, _ in known}) for name in objects.names(instance)]
        # The ledger is read after the objects, so that it knows a row that was quarantined in between.
        needed = {row.object for _, _, row in self._rows(dataset)}
        for name in found:
            if name not in needed:
                objects.remove(name)


def _record_discard(connection: Connection, sink: str, rows: Sequence[Quarantined]) -> None:
    """Not after they are discarded: nothing is discarded without a trace."""
    numbers = [r.seq for r in rows[:_NUMBERS_NAMED_MAX]]
    audit.record(connection, Event.QUARANTINE_DISCARDED, sink=sink, rows=len(rows), numbers=numbers)


def _may_have_landed(name: str, row: Quarantined) -> RefusedError:
    return RefusedError(
        f"row {row.seq} was sent again, and whether it landed is not known",
        hint=f"`strandline sink quarantine replay {name} {row.seq}` finds out.",
    )
