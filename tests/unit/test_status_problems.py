"""Is anything wrong now: how bad, with what, and what to do next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from strandline.status.documents import lake_documents
from strandline.status.maintenance import MaintenanceStatus
from strandline.status.problems.lake_problems import find_problems, worst_first
from strandline.status.problems.status_problem import Severity, Subject
from strandline.status.reconcile import Compared, ReconcileStatus
from strandline.status.report import DatasetStatus, LakeStatus
from strandline.status.sinks import SinkStatus

NOW = datetime(2031, 4, 1, 12, tzinfo=UTC)
WELL = SinkStatus(
    "partner", "files", "default.d", None, 1, None, 0, 0.0, "active", None, None, 0, 0, 9, None, 0, None, "steady",
    0, 0, 0.0,
)  # fmt: skip


def lake(*sinks: SinkStatus, reconcile: ReconcileStatus | None = None, problem: str | None = None) -> LakeStatus:
    dataset = DatasetStatus("default.d", 9, 9, 9, 0, 0, 0, False, (), problem)
    return LakeStatus("lake-id", 9, 9, 1, None, (dataset,), sinks, reconcile=reconcile or ReconcileStatus())


def test_a_lake_that_is_well_has_no_problem() -> None:
    assert find_problems(lake(WELL), NOW) == ()


def test_what_needs_a_person_comes_before_what_goes_on_by_itself() -> None:
    waits = replace(WELL, name="a", state="waiting", reason="a: no answer", retries=2)
    stopped = replace(WELL, name="b", state="stopped", reason="b: its folder was emptied")
    first, second = worst_first(find_problems(lake(waits, stopped), NOW))
    assert (first.severity, first.subject, first.name, first.dataset) == (
        Severity.ERROR, Subject.SINK, "b", "default.d",
    )  # fmt: skip
    assert first.reason == "sink b is stopped: its folder was emptied" and "sink resume b" in (first.next_step or "")
    assert (second.severity, second.name, second.next_step) == (Severity.WARNING, "a", "the next tick tries again")
    assert second.line == "sink a: 2 tries failed: no answer; the next tick tries again"


def test_lanes_of_a_sink_are_one_problem() -> None:
    stopped = replace(WELL, state="stopped", reason="no")
    assert len(find_problems(lake(replace(stopped, partition="k=a"), replace(stopped, partition="k=b")), NOW)) == 1


def test_quarantined_rows_of_all_lanes_are_one_problem_beside_the_state_of_the_sink() -> None:
    held = replace(WELL, quarantined=2, state="stopped", reason="no")
    found = find_problems(lake(replace(held, partition="k=a"), replace(held, partition="k=b", quarantined=1)), NOW)
    assert [(p.severity, p.subject, p.name) for p in found] == [
        (Severity.ERROR, Subject.SINK, "partner"), (Severity.WARNING, Subject.QUARANTINE, "partner"),
    ]  # fmt: skip
    assert found[1].reason == "sink partner refused 3 rows that wait in quarantine"
    assert "sink quarantine list partner" in (found[1].next_step or "")


def test_the_document_of_the_status_names_the_problems_the_worst_first() -> None:
    waits = replace(WELL, name="a", state="waiting", reason="no answer", retries=2)
    shown = lake_documents.lake_status(lake(waits, problem="it was rolled back"))["problems"]
    assert [(p["severity"], p["subject"], p["name"]) for p in shown] == [
        ("error", "dataset", "default.d"), ("warning", "sink", "a"),
    ]  # fmt: skip


def test_missing_files_are_worse_than_orphans_and_partial_never_looks_like_clean() -> None:
    def of(orphans: int, missing: int, *, partial: bool = False) -> list[tuple[Severity, str]]:
        seen = ReconcileStatus(last_run=3, compared=Compared(3, NOW, orphans, missing, partial))
        return [(p.severity, p.line) for p in find_problems(lake(reconcile=seen), NOW)]

    assert of(0, 0) == []
    [(severity, line)] = of(0, 0, partial=True)
    assert severity is Severity.WARNING and "could not check everything" in line
    assert [s for s, _ in of(2, 0)] == [Severity.WARNING] and [s for s, _ in of(2, 1)] == [Severity.ERROR]


def test_a_witness_that_cannot_be_read_stops_ingest_and_one_that_is_ahead_does_not() -> None:
    waits = replace(WELL, name="a", state="waiting", reason="no answer", retries=2)
    lost, ahead = (
        worst_first(find_problems(replace(lake(waits), witness=witness, problem="it is so"), NOW))
        for witness in (None, 12)
    )
    assert (lost[0].severity, lost[0].subject) == (Severity.ERROR, Subject.LAKE)
    assert "nothing can be ingested" in lost[0].line and "--lost-witness" in lost[0].line
    assert [p.severity for p in ahead] == [Severity.WARNING] * 2 and ahead[0].line == "it is so"


def test_a_rule_that_does_not_count_says_what_to_do() -> None:
    care = MaintenanceStatus({}, ("default.gone",), ("schedule.retain",), ())
    assert all(p.next_step for p in find_problems(replace(lake(), maintenance=care), NOW))


def test_a_table_that_cannot_be_used_is_an_error_of_its_dataset() -> None:
    [found] = find_problems(lake(problem="it was rolled back"), NOW)
    assert (found.severity, found.subject) == (Severity.ERROR, Subject.DATASET)
    assert found.line == "default.d: it was rolled back; details: `strandline dataset show default.d`"
