"""What a generation that sends rows again builds on: rows below its beginning, which an older generation delivered and
nobody delivers again.

While a lane has landed nothing in its own generation, the sink is asked for the last ranges below it, in the generation
that landed them. Afterwards the sink is asked for what the lane landed itself, as in any lane. Without this check, the
model in `tests/model/generations_model.py` loses rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from strandline.core.delivery_types import Lane
from strandline.core.errors import SinkStopped
from strandline.core.types import SeqRange, before
from strandline.deliver.plan.chunking import not_held
from strandline.deliver.sink import Held
from strandline.deliver.sink_session import SinkRun
from strandline.deliver.verify.ranges import Fault, VerifyFinding
from strandline.ledger.deliver import older_generations
from strandline.ledger.deliver.older_generations import Foundation


def ask_foundations(run: SinkRun, partitions: Collection[str]) -> list[tuple[Foundation, Held]]:
    """What the lanes build on, each with what the destination holds of it."""
    if run.record.generation == 1:
        return []
    found = run.context.ledger.query(older_generations.foundations, run.record, partitions)
    asked = [(replace(run.address(f.partition), generation=f.generation), before(f.ranges[0].lo)) for f in found]
    return list(zip(found, run.sink().held(asked), strict=True)) if found else []


def missing_below(foundation: Foundation, held: Held) -> list[SeqRange]:
    """Ranges of the foundation that the destination no longer lists. A listed range counts as its rows here: the
    destination was checked when the generation began."""
    return not_held(foundation.ranges, held)


def check_foundations(run: SinkRun, partitions: Collection[str]) -> None:
    """Raises SinkStopped if the destination lacks rows that the present generation builds on."""
    for foundation, held in ask_foundations(run, partitions):
        if gone := missing_below(foundation, held):
            where = f" (partition {foundation.partition})" if foundation.partition else ""
            name = run.record.name
            raise SinkStopped(
                f"{name}{where}: its destination no longer has {gone[-1]}, which it acknowledged in generation "
                f"{foundation.generation}, and generation {run.record.generation} continues after it",
                hint=f"`strandline sink recover {name} --resend` sends it again, in a new generation; "
                "`--accept-loss` continues without it.",
            )


def compare_older(run: SinkRun, known: Sequence[Lane]) -> list[VerifyFinding]:
    """For `verify`: whether the destination still lists ranges of older generations. It does not read their rows."""
    findings: list[VerifyFinding] = []
    name, where = run.record.name, run.record.destination
    for lane in (x for x in known if x.builds_on is not None):
        for generation, ranges in run.context.ledger.query(older_generations.all_below, run.record, lane):
            if not ranges:
                continue
            address = replace(run.address(lane.partition), generation=generation)
            gone = not_held(ranges, run.sink().held([(address, None)])[0])
            words = f"delivered in generation {generation}, on which the present one builds, and no longer there"
            findings += (VerifyFinding(Fault.MISSING, name, lane.partition, r, where, words) for r in gone)
            if not gone:
                words = f"delivered in generation {generation}; its ranges are there, their rows were not compared"
                whole = SeqRange(ranges[0].lo, ranges[-1].hi)
                findings.append(VerifyFinding(Fault.NOTE, name, lane.partition, whole, where, words))
    return findings
