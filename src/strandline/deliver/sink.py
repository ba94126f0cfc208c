"""The interface that every kind of sink implements, ours and those of other packages.

A sink answers for itself what it holds; the ledger only caches the answer. A chunk is identified by its range: a range
that the sink holds completely is a repeat, and the sink does nothing; a range disjoint from what it holds is new;
anything else is a conflict.

Packages register a kind under the entry point group `strandline.sinks`: the name is the kind, the value a `SinkKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from strandline.core.delivery_types import PeerKind
from strandline.core.forward_protocol import LaneName
from strandline.core.settings.lake_config import ForwardSettings
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.text.masking import masked
from strandline.core.types import Seq, SeqRange
from strandline.iceberg.schema.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

ENTRY_POINTS = "strandline.sinks"

Address = LaneName  # the lane in the sink's own record; together with a range it identifies a chunk


@dataclass(frozen=True, slots=True)
class HeldRange:
    rows: SeqRange
    count: int | None = None
    digest: str | None = None
    size: int | None = None

    @staticmethod
    def of(lo: int, hi: int, count: int, digest: str, size: int) -> HeldRange:
        return HeldRange(SeqRange(Seq(lo), Seq(hi)), count, digest, size)


@dataclass(frozen=True, slots=True)
class Held:
    """What a sink holds of a lane: everything at or below the watermark `mark`, and `ranges`, sorted and disjoint."""

    mark: Seq | None
    ranges: tuple[HeldRange, ...]
    known: bool = True  # False: the peer cannot be asked, so a missing range proves nothing


@dataclass(frozen=True, slots=True)
class Claim:
    """Who delivers to a destination. The sink writes it into its own record before the first row."""

    lake: str
    instance: str
    dataset: str
    table_uuid: str  # the dataset's id; sinks store it under this name, because it once was the table's uuid
    term: int = FIRST_TERM  # of the site that leads the lake, and so delivers


@dataclass(frozen=True, slots=True)
class Claimed:
    """The sink's own record: who claimed the destination, and the highest generation and term that it has seen."""

    claim: Claim
    generation: int


def term_passed(destination: str, term: int) -> str:
    """Why a sink that has seen a higher term takes nothing."""
    return f"{destination} gets its rows from the leader of term {term} now"


@dataclass(frozen=True, slots=True)
class Landed:
    """The chunk is durable at the sink."""

    count: int
    digest: str
    size: int
    # The range had landed before. The content that landed then is the delivery, whatever was offered now.
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class _Said:
    """An outcome with the sink's own words, in which secrets are masked."""

    why: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", masked(self.why))


@dataclass(frozen=True, slots=True)
class Refused(_Said):
    """The sink refuses the chunk for good, because of its content."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The chunk overlaps ranges that the sink holds."""

    held: tuple[SeqRange, ...]


@dataclass(frozen=True, slots=True)
class TryLater(_Said):
    wait_seconds: float | None = None  # as long as the sink asked for
    may_be_rows: bool = False  # The rows may be the cause. A sender that says so is a `TriesRows`.


@dataclass(frozen=True, slots=True)
class Unknown(_Said):
    """The chunk may have landed: ask the sink before sending it again."""


Outcome = Landed | Refused | Conflict | TryLater | Unknown


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """A chunk to send. `rows` is sorted by sequence number, in Arrow chunks of any size; the sink's `form` says which
    columns. The same rows must give the same bytes, however Arrow divides them."""

    address: Address
    range: SeqRange
    rows: pa.Table


class Sender(Protocol):
    """Sends chunks. It is pickled and sent to the executors, and connects there, on first use. It holds secrets that
    the driver resolved, so it must not print itself. A sender that mostly waits for a server may set `at_once = 2`: a
    task then sends that many chunks at once, each with a copy of the sender."""

    def send(self, chunk: ChunkRows) -> Outcome: ...

    def close(self) -> None: ...


@runtime_checkable
class TriesRows(Protocol):
    """A sender whose destination gives the same errors for bad rows and for its own troubles. If the destination
    accepts a row that is not delivered yet, and then refuses the chunk again, the chunk is to blame."""

    def takes_any(self, rows: pa.Table) -> bool:
        """Whether the destination takes any of these rows now. Nothing is committed."""

    def blaming_rows(self) -> Sender:
        """A copy that returns `Refused` instead of a `TryLater` with `may_be_rows`."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a range that the sink holds contains. `problem` says what is wrong with the content itself."""

    count: int | None
    digest: str | None
    problem: str | None = None


@runtime_checkable
class HasPeer(Protocol):
    """A sink whose destination may be a peer that cannot be asked what it holds."""

    def peer_kind(self) -> PeerKind:
        """May send one request; raises StorageError while the peer's kind cannot be found out."""


def can_be_asked(sink: object) -> bool:
    """Whether the destination can say what it holds."""
    return not isinstance(sink, HasPeer) or sink.peer_kind() is PeerKind.RECEIVER


class Inspector(Protocol):
    """Reads ranges back. It is pickled and sent to the executors, like a sender, unless it sets `asks_only = True`:
    then a server reads, and tasks would only wait for it."""

    def inspect(self, address: Address, rows: SeqRange) -> Inspected: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A sender that sends nothing, and returns what would have landed."""

    landed: Callable[[ChunkRows], Landed]  # can be pickled

    def send(self, chunk: ChunkRows) -> Outcome:
        return self.landed(chunk)

    def close(self) -> None:
        return None


class Sink(Protocol):
    """A destination, as the driver sees it. Raises `RefusedError` for a person to decide, `StorageError` to retry."""

    # What a chunk's table holds. `rows`: the delivered columns as Arrow, `_ingest_seq` first unless columns were
    # chosen. `jsonl`, `csv`, `copy` (PostgreSQL's text format): `_ingest_seq` and `line`, a line without its end.
    form: str

    destination: str  # without secrets; no two sinks of a lake have the same

    # Whether the sink remembers watermarks. If so, only its watermark counts: chunks land in any order, so a range that
    # is present says nothing about those below it. If not, the sink keeps every range forever.
    stores_watermarks: bool

    def prepare(self, columns: Sequence[Column]) -> None:
        """Called before the first intent, and after the dataset's schema changed. The sink follows the change, or
        raises `SchemaError` with what to do. `columns` are the delivered ones, in order, `_ingest_seq` among them."""

    def claimed(self) -> Claimed | None:
        """The sink's own record, if it has one."""

    def claim(self, claim: Claim, generation: int) -> Claimed:
        """Write the record if there is none, or raise its generation or its term if this one is higher; returns the
        record. Neither ever goes back, in whatever order deliverers claim."""

    def fence(self, token: str) -> None:
        """Called when a new deliverer begins: what older ones still send fails from now on, as far as possible."""

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        """What the sink holds of each lane: at least everything beyond the given sequence number (None: everything)."""

    def sender(self, token: str) -> Sender: ...

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        """Store durably that all rows up to this sequence number are delivered; never go back. Called after the chunks
        have landed, before the ledger's own watermark. A sink that keeps its ranges forever does nothing."""

    def inspector(self) -> Inspector: ...

    def close(self) -> None: ...


@runtime_checkable
class Numbered(Protocol):
    """A sink of the form `rows` that gets `_ingest_seq` even if the option `columns` does not name it."""

    is_numbered: bool


def is_numbered(sink: Sink) -> bool:
    return sink.form == "copy" or (isinstance(sink, Numbered) and sink.is_numbered)


@runtime_checkable
class Provable(Protocol):
    """Optional methods of a sink, with which `verify` compares contents and not only counts."""

    def rehearsal(self, columns: Sequence[str]) -> Sender:
        """Sends nothing, and returns what would have landed. The columns are those that `prepare` would get."""

    def comparison(self, columns: Sequence[str]) -> Sender | None:
        """Sends nothing: `Landed` if the sink has exactly these rows, `Conflict` if others. For content of another
        digest, which another version of a library wrote. None if the sink does not store what was sent."""

    def name_of(self, address: Address, rows: SeqRange) -> str:
        """The name under which a person finds the range at the sink."""


@dataclass(frozen=True, slots=True)
class OlderRows:
    """Rows of an older generation on which the present one builds: `above < _ingest_seq ≤ upto`."""

    address: Address  # of the older generation
    above: int
    upto: int


@dataclass(frozen=True, slots=True)
class SinkContext:
    home: Path  # relative paths start here
    dataset: str
    generation: int
    # Only those of the kind, with `env:NAME` resolved and defaults filled in. Never store or show them.
    options: Mapping[str, str] = field(repr=False)
    lake: str = ""
    settings: ForwardSettings = field(default_factory=ForwardSettings)  # which addresses the lake's settings allow
    # The same options as stored: they say where a secret is read from, for a kind that reads it again.
    given: Mapping[str, str] = field(default_factory=dict)
    peer: PeerKind | None = None  # what the destination was when it was claimed; None if not known yet
    # Queries the ledger, so a sink calls it only when it has a reason to.
    builds_on: Callable[[], Sequence[OlderRows]] = tuple
    has_lanes: bool = False  # whether the dataset is delivered by columns, in a lane for each logical partition
    term: int = FIRST_TERM  # of this site. A sink that has seen a higher one refuses what is sent, where it can.


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a kind of sink: `--option name=value`."""

    name: str
    description: str
    required: bool = False
    default: str | None = None
    secret: bool = False  # only `env:NAME` and `file:PATH` are accepted: a secret is never stored
    # Raises UsageError for a value, as it was given, that must not or cannot be stored.
    check: Callable[[str], object] | None = None
    # An open intent keeps the value that it was stored with. False for options that say how to reach and understand the
    # destination, not what is delivered: there the sink's present value applies at once.
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class SinkKind:
    options: tuple[Option, ...]
    # Checks the options and nothing else: no connection, no file. Raises UsageError.
    open: Callable[[SinkContext], Sink]
    # Common options where this kind has another default. They are stored with the sink when it is added.
    defaults: Mapping[str, str] = field(default_factory=dict)
    checked_when_idle: bool = False  # whether the daemon sometimes checks an idle sink for a loss (`NoticesLoss`)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a lane is cut into chunks from the sink's own watermark on."""

    until: Seq
    ranges: tuple[SeqRange, ...]


@runtime_checkable
class Pinning(Protocol):
    """A sink that cannot cancel a put that is under way. It stores how a lane is cut from a watermark on, before the
    first chunk is sent, and never replaces it. Every planner that starts at that watermark keeps to the stored cut. So
    a restored ledger, which would cut differently, uses the same object names as a deliverer that is still running."""

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None: ...

    def pin(self, cuts: Sequence[tuple[Address, Seq | None, Cut]]) -> list[Cut]:
        """For each lane, with the sink's watermark as it was read: the cut that counts, which is this one or one stored
        earlier. Raises StorageError if the watermark has moved meanwhile."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A destination lacks rows that it acknowledged."""

    what: str
    given: int
    there: int  # at most so many of the given rows are still there, as far as they were counted
    hint: str | None = None  # what else to do, if this may be no loss


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a destination that lost rows still has of a lane."""

    held: Held  # ranges that are complete, and those whose loss was accepted
    in_part: tuple[SeqRange, ...]
    missing: int


@runtime_checkable
class NoticesLoss(Protocol):
    """A sink whose record is stored beside the rows, so that rows can vanish while their ranges stay listed."""

    def find_loss(self) -> Loss | None:
        """Called at the start of every run that has something to deliver, after the claim."""

    def remaining(self, lanes: Sequence[Address]) -> list[Remaining]:
        """For each lane. It reads the rows, so it may take long."""

    def accept_loss(self) -> None:
        """Count the missing rows as delivered from now on, and do not report them again."""


def covers(held: Sequence[SeqRange], rows: SeqRange) -> bool:
    """Whether one of these ranges, sorted and merged, covers `rows`."""
    return any(h.lo <= rows.lo and rows.hi <= h.hi for h in held)


def overlapping(held: Sequence[SeqRange], rows: SeqRange) -> Iterator[SeqRange]:
    return (h for h in held if h.overlaps(rows))
