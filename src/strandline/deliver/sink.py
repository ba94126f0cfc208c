"""What a sink is: the small interface that every kind of sink implements, ours and those of other packages.

A sink answers for itself what it holds; the ledger only caches it. Ranges are the identity of what was sent: a range
that is wholly covered by what is held is a repeat, and nothing happens; one that is disjoint is new; anything else is a
conflict.

Packages register a kind under the entry point group `strandline.sinks`: the name is the kind, the value a `SinkKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from strandline.core.delivery_types import PeerKind
from strandline.core.settings import ForwardSettings
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.schema.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

ENTRY_POINTS = "strandline.sinks"


@dataclass(frozen=True, slots=True)
class Address:
    """The name of a lane as the sink's own record knows it. Together with a range it identifies a chunk."""

    lake: str
    instance: str
    generation: int
    dataset: str
    partition: str
    """Encoded, injective, and empty for a dataset that has no logical partitions."""


@dataclass(frozen=True, slots=True)
class HeldRange:
    rows: SeqRange
    count: int | None = None
    digest: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a sink holds of a lane: everything at or below `mark`, and `ranges`, sorted and disjoint."""

    mark: Seq | None
    ranges: tuple[HeldRange, ...]
    told: bool = True
    """False: the other end cannot be asked, so that nothing follows from what is not here."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who delivers to a destination, written into the sink's own record before the first row."""

    lake: str
    instance: str
    dataset: str
    table_uuid: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The sink's own record: whose destination it is, and the highest generation that it has seen."""

    claim: Claim
    generation: int


# What can become of a chunk that is sent.


@dataclass(frozen=True, slots=True)
class Landed:
    """Durable at the sink."""

    count: int
    digest: str
    size: int
    repeat: bool = False
    """It was there already: what landed under the range is the delivery, whatever was offered now."""


@dataclass(frozen=True, slots=True)
class Refused:
    """For good, because of what it holds."""

    why: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """It overlaps what is held."""

    held: tuple[SeqRange, ...]


@dataclass(frozen=True, slots=True)
class TryLater:
    why: str
    wait_seconds: float | None = None
    """What the sink asked for, if it did."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have landed: ask before it is sent again."""

    why: str


Outcome = Landed | Refused | Conflict | TryLater | Unknown


@dataclass(frozen=True, slots=True)
class Parcel:
    """A chunk on its way. `rows` is sorted by number, in pieces of any size; its columns are as the sink's `form` says.
    The same rows must give the same bytes, whatever the pieces are."""

    address: Address
    range: SeqRange
    rows: pa.Table


class Sender(Protocol):
    """Pickled and sent to the executors; opens its connections there, on first use. Holds secrets that were resolved
    on the driver: it must not print itself. One that waits for a server rather than works may say `at_once = 2`: then
    so many chunks of a task are sent at once, each by a copy of it."""

    def send(self, parcel: Parcel) -> Outcome: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Inspected:
    """One held range, read back. `problem` says what is wrong with the content itself."""

    count: int | None
    digest: str | None
    problem: str | None = None


@runtime_checkable
class HasPeer(Protocol):
    """A sink whose destination may be a server that cannot be asked what it holds."""

    def peer_kind(self) -> PeerKind:
        """May need a request, once; raises StorageError while nobody can tell."""


def can_be_asked(sink: object) -> bool:
    """Whether the sink's destination can say what it holds."""
    return not isinstance(sink, HasPeer) or sink.peer_kind() is PeerKind.RECEIVER


class Inspector(Protocol):
    """Pickled and sent to the executors, like a sender; unless it says `asks_only = True`: a server does the reading,
    so that tasks would only wait for it, and perhaps for each other where the server's own work is done by the same
    Spark."""

    def inspect(self, address: Address, rows: SeqRange) -> Inspected: ...

    def close(self) -> None: ...


FORMS = ("rows", "jsonl", "csv", "copy")


class Sink(Protocol):
    """On the driver. Errors are raised: `RefusedError` where a person has to decide, `StorageError` to try later."""

    form: str
    """What a parcel's table is. `rows`: the delivered columns as Arrow, `_ingest_seq` first unless columns were chosen.
    `jsonl`, `csv`, `copy` (PostgreSQL's text format): two columns, `_ingest_seq` and `line`, a line without its end."""

    destination: str
    """Where it delivers to, without secrets: two sinks of a lake never have the same."""

    keeps_marks: bool
    """Whether it remembers marks. One that does is believed by its mark alone: chunks land in any order, and a name
    that is there says nothing about those below it. One that does not keeps every range for ever."""

    def prepare(self, columns: Sequence[Column]) -> None:
        """Before the first intent, and after the dataset's schema changed: follow, or refuse with a `SchemaError` that
        says what to do. The columns are those that are delivered, in order; `_ingest_seq` is among them."""

    def claimed(self) -> Claimed | None:
        """The sink's own record, if it has one."""

    def claim(self, claim: Claim, generation: int) -> Claimed:
        """Write the record if there is none, raise its generation if this one is higher; the record as it is then."""

    def fence(self, token: str) -> None:
        """A new deliverer begins: as far as the sink can, what an older one still has under way fails from now on."""

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        """What is held of each lane, at least everything beyond the number that stands with it (None: everything)."""

    def sender(self, token: str) -> Sender: ...

    def mark(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        """All rows up to the number are delivered: remember it durably, never going back. After the objects, before
        the ledger. A sink that keeps its ranges for ever has nothing to do."""

    def inspector(self) -> Inspector: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OlderRows:
    """Rows that an older generation landed in a lane, `above < number ≤ upto`: the present one goes on behind them."""

    address: Address
    """Of the older generation."""
    above: int
    upto: int


def _builds_on_nothing() -> Sequence[OlderRows]:
    return ()


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is opened with."""

    home: Path
    """The folder that relative paths start from."""
    dataset: str
    generation: int
    options: Mapping[str, str] = field(repr=False)
    """Only those of its kind, with `env:NAME` resolved and defaults filled in: never to be stored or shown."""
    lake: str = ""
    settings: ForwardSettings = field(default_factory=ForwardSettings)
    """What the lake's settings say of places that can be reached."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The same options as they are stored: where a secret is read from, for a kind that reads it again."""
    peer: PeerKind | None = None
    """What the destination was when it was claimed; None where that is not known yet."""
    builds_on: Callable[[], Sequence[OlderRows]] = _builds_on_nothing
    """Asks the ledger, so only a sink that has a reason to calls it."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a kind of sink: `--option name=value`."""

    name: str
    description: str
    required: bool = False
    default: str | None = None
    secret: bool = False
    """Only `env:NAME` and `file:PATH` are accepted: a secret is never stored."""
    check: Callable[[str], None] | None = None
    """Raises UsageError for a value, as it was given, that must not be stored or cannot be."""
    pinned: bool = True
    """An open intent keeps the value that it was stored with. False for what says how the destination is reached and
    understood, and not what is delivered: there the sink's present value counts at once."""


@dataclass(frozen=True, slots=True)
class SinkKind:
    options: tuple[Option, ...]
    open: Callable[[SinkContext], Sink]
    """Checks the options and nothing else: no connection, no file. Raises UsageError."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Options that every sink has, where this kind begins with another value; stored with the sink when it is added."""
    checked_when_idle: bool = False
    """Whether the daemon asks a sink that has nothing to deliver for a loss (`NoticesLoss`), now and then."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a lane is cut from the sink's own mark on."""

    until: Seq
    ranges: tuple[SeqRange, ...]


@runtime_checkable
class Pinning(Protocol):
    """A sink that cannot call off a put which is under way. It keeps, at its own side, how a lane is cut from a mark
    on, written before the first chunk is sent and never replaced: whoever plans from that mark keeps to it. So a ledger
    that was restored, and would cut differently, offers the same names as the deliverer that is still at it."""

    def mark(self, marks: Sequence[tuple[Address, Seq]]) -> None: ...

    def pin(self, cuts: Sequence[tuple[Address, Seq | None, Cut]]) -> list[Cut]:
        """Of each lane, by the sink's mark as it was read: the cut that counts, this one or one that was there. Raises
        StorageError if the mark has moved meanwhile."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A destination lacks rows that it was given."""

    what: str
    given: int
    there: int
    """Of those that were given, as far as they were counted: not more than this."""
    hint: str | None = None
    """What else to do, where this may be no loss."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a destination that lost rows still has of a lane."""

    held: Held
    """Ranges that are there whole, and those that were given up."""
    in_part: tuple[SeqRange, ...]
    missing: int


@runtime_checkable
class NoticesLoss(Protocol):
    """A sink whose record stands beside the rows, so that rows can go while their ranges stay."""

    def find_loss(self) -> Loss | None:
        """At the beginning of every run that has something to deliver, after the claim."""

    def remaining(self, lanes: Sequence[Address]) -> list[Remaining]:
        """For each lane; reads the rows, so it may take long."""

    def accept_loss(self) -> None:
        """What is missing counts as delivered from now on, and is not missed again."""


def covers(held: Sequence[SeqRange], rows: SeqRange) -> bool:
    """Whether these ranges, sorted and merged, hold all of it."""
    return any(h.lo <= rows.lo and rows.hi <= h.hi for h in held)


def overlapping(held: Sequence[SeqRange], rows: SeqRange) -> Iterator[SeqRange]:
    return (h for h in held if h.overlaps(rows))
