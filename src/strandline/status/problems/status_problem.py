"""One thing that is wrong: what, how bad it is, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LONG_SECONDS = 600  # what has failed for longer does not heal by itself
TABLE_GONE = (
    "the catalog has no table of this name: put it back there, or remove its sinks and give the dataset up with "
    "`strandline dataset drop`"
)


class Severity(StrEnum):
    ERROR = "error"  # rows do not arrive, or are lost, until a person does something
    WARNING = "warning"  # a person should know; work continues, or resumes by itself


class Subject(StrEnum):
    LAKE = "lake"
    DATASET = "dataset"
    SINK = "sink"
    QUARANTINE = "quarantine"  # of rows that a sink refused; `name` is the sink's
    CONSUMER = "consumer"
    FOLLOWER = "follower"
    LEADER = "leader"  # of a site that follows
    RECONCILER = "reconciler"

    def named(self, name: str | None, dataset: str | None) -> ProblemSubject:
        """The one of this name; `dataset` is the one that it concerns, None: the whole lake."""
        return ProblemSubject(self, name, dataset)


@dataclass(frozen=True, slots=True)
class StatusProblem:
    severity: Severity
    subject: Subject
    name: str | None  # of the dataset, sink, consumer or follower
    dataset: str | None  # the dataset that it concerns; None: the whole lake
    reason: str
    next_step: str | None = None  # None if there is nothing to do, or the reason says it

    @property
    def line(self) -> str:
        """In one sentence."""
        return self.reason if self.next_step is None else f"{self.reason}; {self.next_step}"


@dataclass(frozen=True, slots=True)
class ProblemSubject:
    """What problems are about: a part of the lake."""

    subject: Subject
    name: str | None
    dataset: str | None

    def error(self, reason: str, next_step: str | None = None) -> StatusProblem:
        return StatusProblem(Severity.ERROR, self.subject, self.name, self.dataset, reason, next_step)

    def warning(self, reason: str, next_step: str | None = None) -> StatusProblem:
        return StatusProblem(Severity.WARNING, self.subject, self.name, self.dataset, reason, next_step)
