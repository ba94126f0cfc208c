"""The JSON documents of replication, for commands and the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.core.documents import Document, error_document, fields_of

if TYPE_CHECKING:
    from pathlib import Path

    from strandline.ledger.replicate.followers import RegisteredFollower
    from strandline.replicate.follow.compare_with_leader import DatasetVerdict
    from strandline.replicate.follow.follower import FollowReport
    from strandline.replicate.take_over.rejoin import Rejoined
    from strandline.status.followers import FollowerStatus
    from strandline.status.leadership import Leadership
    from strandline.status.replication import ReplicationStatus

NOT_SHOWN_OF_RECORD = ("lake", "beat")


def follower(f: RegisteredFollower, names: Mapping[str, str]) -> Document:
    """`names`: the datasets' by their ids. A dataset that was dropped is shown by its id."""
    only = None if f.datasets is None else [names.get(uuid, uuid) for uuid in f.datasets]
    return fields_of(f, "id", "token") | {"datasets": only}


def follower_in_full(f: RegisteredFollower, names: Mapping[str, str], shards: Sequence[FollowerStatus]) -> Document:
    return follower(f, names) | {"shards": list(map(fields_of, shards))}


def replication(found: ReplicationStatus) -> Document:
    """What this site follows, who follows it, and who leads."""
    return (
        {"lake": found.lake}
        | fields_of(found.site)
        | {
            "followers": list(map(fields_of, found.followers)),
            "leadership": leadership(found.leadership),
            "set_aside": list(map(fields_of, found.set_aside)),
        }
    )


def leadership(found: Leadership) -> Document:
    arbiter = None
    if (said := found.arbiter) is not None:
        record = None if said.record is None else fields_of(said.record, *NOT_SHOWN_OF_RECORD)
        arbiter = fields_of(said) | {"record": record}
    return fields_of(found) | {"arbiter": arbiter}


def verify_leader(verdicts: Sequence[DatasetVerdict]) -> Document:
    return {"ok": all(v.ok for v in verdicts), "datasets": [fields_of(v) | {"ok": v.ok} for v in verdicts]}


def new_site(lake: str, config: Path, warehouse: str, leader: str | None) -> Document:
    return {"lake": lake, "config": config, "warehouse": warehouse, "leader": leader}


def follow_pass(report: FollowReport) -> Document:
    return {
        "recorded": report.recorded,
        "applied": len(report.applied),
        "made": report.made,
        "dropped": report.dropped,
        "failed": [error_document(e) for e in report.failed],
    }


def rejoined(found: Rejoined) -> Document:
    led = found.led
    return {
        "leader": found.leader,
        "term": found.term,
        "led_in_term": None if led is None else led.term,
        "datasets": None if led is None else list(led.followed),
        "not_at_the_leader": [] if led is None else list(led.not_at_the_leader),
        "open_blocks": 0 if led is None else led.open_blocks,
        "bodies": list(map(fields_of, found.bodies)),
    }


def follower_list(
    known: Sequence[RegisteredFollower], names: Mapping[str, str], shards: Sequence[FollowerStatus]
) -> Document:
    return {"followers": [follower(f, names) for f in known], "shards": shards}
