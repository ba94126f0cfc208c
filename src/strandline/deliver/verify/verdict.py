"""The result of `verify`, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from strandline.core.errors import RefusedError
from strandline.core.types import Seq
from strandline.deliver.verify.ranges import Fault, VerifyFinding

VerifyProgress = Callable[[str, str, int, int], None]  # sink, present step, done, total


@dataclass(kw_only=True)
class Proved:
    """What was proved, counted: of a lane, or of all lanes of a sink."""

    ranges: int = 0  # held by the sink and read back
    rows: int = 0
    withheld: int = 0
    empty: int = 0
    taken: int = 0
    taken_over: int = 0  # held by the sink; the ledger knows them only by the watermark that it read from there
    under_way: int = 0
    gone: int = 0  # delivered rows that retention or purge deleted from the lake: the ledger's record proves them
    unprovable: int = 0  # ranges whose content neither the lake nor the ledger knows any more
    checked_bytes: int = 0


def add_up(proved: Sequence[Proved]) -> dict[str, int]:
    return {f.name: sum(getattr(p, f.name) for p in proved) for f in fields(Proved)}


@dataclass
class SinkVerdict(Proved):
    name: str
    kind: str
    lanes: int
    quarantined: int = 0  # rows that the sink refused and does not have
    replayed: int = 0
    discarded: int = 0
    lost: int = 0  # rows that it will never get, because a rule or a person decided so
    start: Seq | None = None
    watermark: Seq | None = None  # the lowest of its lanes; None if nothing was delivered yet
    findings: tuple[VerifyFinding, ...] = ()

    @property
    def ok(self) -> bool:
        return not any(f.is_fault for f in self.findings)

    @property
    def unreadable(self) -> bool:
        """Nothing was found to be wrong, but not everything could be read."""
        faults = [f for f in self.findings if f.is_fault]
        return bool(faults) and all(f.kind is Fault.UNREADABLE for f in faults)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    sinks: tuple[SinkVerdict, ...]

    @property
    def ok(self) -> bool:
        return all(s.ok for s in self.sinks)

    @property
    def exit_code(self) -> int:
        if any(not s.ok and not s.unreadable for s in self.sinks):
            return 1
        return 0 if self.ok else RefusedError.exit_code
