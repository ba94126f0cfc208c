"""The numbers of `status` as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from strandline.core.settings.lake_config import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest.dataset_report import DatasetFacts, read_datasets
from strandline.ledger.receive import receive_holds
from strandline.status.consumers import ConsumerStatus, read_consumers
from strandline.status.followers import FollowerStatus, read_followers
from strandline.status.leadership import UNASKED, ArbiterStatus, Leadership, read_leadership
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus, read_maintenance
from strandline.status.receive import ReceiveStatus, read_receive
from strandline.status.reconcile import ReconcileStatus, read_reconcile
from strandline.status.replication import LEADS, SiteStatus, read_site
from strandline.status.whole_sinks import WholeSink, read_whole_sinks

PREFIX = "strandline_"
HELP: Mapping[str, str] = {
    "sink_lag_rows": "Settled rows that the sink does not have yet.",
    "sink_lag_seconds": "For how long the oldest of them has been settled.",
    "sink_state": "1 for the state that the sink is in: active, paused, waiting (to try again) or stopped.",
    "sink_failed_ticks": "Failed ticks in a row.",
    "sink_delivered_rows": "Rows that were delivered in this generation of the sink.",
    "sink_quarantined_rows": "Rows that the sink refused and that are in quarantine.",
    "sink_held_rows": "Rows that are due for deletion and stay, because the sink does not have them.",
    "sink_held_since_timestamp_seconds": "Since when the sink holds retention back; absent while it does not.",
    "sink_lost_rows": "Rows that were deleted before the sink had them, in this generation of it.",
    "sink_unknown_losses": "Ranges of sequence numbers in which the sink lost an unknown number of rows.",
    "received_waiting_rows": "Rows that were received over HTTP and wait to be ingested.",
    "received_waiting_bytes": "Bytes of their files in the spool.",
    "received_oldest_timestamp_seconds": "When the oldest of them was received; absent while there is none.",
    "received_set_aside_bodies": "Bodies that were received, could not be ingested, and wait for a person.",
    "received_unrecorded_bodies": "Bodies in the spool that the ledger cannot record, so that nobody ingests them.",
    "received_dropped_bytes": "Bytes in the spool of bodies that were received for a dataset that was dropped.",
    "received_held": "1 while the receiver is on hold, until a person releases it; else absent.",
    "dataset_sealed": "Everything up to this sequence number is settled; absent while nothing is.",
    "dataset_allocated": "The highest sequence number of its blocks; absent while there is none.",
    "dataset_open_blocks": "Blocks that are not settled yet: readers and sinks get nothing above the lowest of them.",
    "dataset_oldest_open_block_timestamp_seconds": "When the oldest of them was reserved; absent while there is none.",
    "dataset_unnumbered_rows": "Rows without a sequence number, when they were last counted. No sink gets them.",
    "dataset_foreign_rows": "Foreign rows, when they were last counted; absent if counting them would take too long.",
    "dataset_number_twice": "1 if two rows had the same sequence number then: reads and deliveries of it are refused.",
    "dataset_refused": "1 while reads, ingest and delivery are refused, or in doubt: `strandline status` says why.",
    "dataset_floor": "Rows up to this sequence number may have been deleted by retention.",
    "dataset_held_rows": "Rows that are due for deletion and stay, for the sink that holds the most of them.",
    "consumer_watermark": "The consumer has every row up to this sequence number; absent while it has none.",
    "consumer_lag_rows": "Settled rows that the consumer does not have yet.",
    "consumer_lag_seconds": "For how long the oldest of them has been settled.",
    "consumer_heard_of_timestamp_seconds": "When the consumer last reported its progress; absent until then.",
    "consumer_held_since_timestamp_seconds": "Since when retention keeps due rows for it; absent while it does not.",
    "consumer_dropped_upto": "Retention has deleted rows up to this sequence number that it did not have; else absent.",
    "follower_lag_segments": "Settled segments of the shard that the follower has not applied yet.",
    "follower_lag_rows": "Rows in them.",
    "follower_lag_seconds": "For how long the oldest of them has been published.",
    "follower_heard_of_timestamp_seconds": "When the follower last reported its progress; absent until then.",
    "follower_held_since_timestamp_seconds": "Since when retention keeps rows of the dataset for it; absent while it "
    "does not.",
    "follower_dropped_upto": "Retention has deleted rows up to this sequence number that it did not have; else absent.",
    "site_role": "1 for the role of this site: leader or follower.",
    "site_term": "The term of the leader. It rises when another site takes over.",
    "site_superseded": "1 at a leader that another site has replaced: it takes no more rows until it has rejoined. "
    "Else 0.",
    "site_promoting": "1 while a promotion of this site is under way, else 0.",
    "site_member": "With an arbiter, at a leader: 1 for a follower that may be promoted, 0 for one that may not yet.",
    "site_lease_seconds": "With an arbiter: for how long a leader may take rows without an answer of it. Only from a "
    "server, as the two that follow.",
    "site_lease_left_seconds": "How much of it this process has left; 0: it takes no rows; absent while it has none.",
    "arbiter_answers": "1 if the arbiter answered when this process last asked it, 0 if it did not.",
    "leader_answered_timestamp_seconds": "At a follower: when its leader last answered; absent until then.",
    "leader_failing_since_timestamp_seconds": "At a follower: since when it fails at this step (ask: the leader does "
    "not answer, apply, tell); absent while nothing fails.",
    "following_lag_segments": "At a follower: settled segments of the shard that it has not applied yet; absent while "
    "its leader does not answer.",
    "following_lag_rows": "Rows in them.",
    "following_lag_seconds": "For how long the oldest of them has been on record here.",
    "following_applied": "At a follower: the items of the shard up to this sequence number are applied; 0: none is.",
    "maintenance_last_run_timestamp_seconds": "When the newest run of its kind began; dry runs do not count.",
    "maintenance_last_run_seconds": "How long it took; absent while it is under way.",
    "maintenance_last_run_ok": "1 if it was done, 0 if it failed, died, was refused or skipped; absent until then, "
    "and if it was called off.",
    "reconcile_last_run": "The number of the newest run of the reconciler that ended: it rises with every run.",
    "reconcile_last_run_ended_timestamp_seconds": "When it ended.",
    "reconcile_last_run_ok": "1 if it went through, 0 if it ended early.",
    "reconcile_last_run_aborted": "1 for the reason why it ended early; absent if it did not.",
    "reconcile_last_run_doubts": "1 for each reason why its result may be incomplete or wrong; else absent.",
    "reconcile_compared_timestamp_seconds": "When the newest run began that compared tables and storage.",
    "reconcile_orphan_files": "Orphan files that it found and left.",
    "reconcile_missing_files": "Entries without a file that it found and left.",
    "reconcile_partial": "1 if it could not check everything.",
}
"""All are gauges: a reset starts a sink's numbers again, and old runs are deleted."""

_MORE_LABELS = {
    "sink_state": ("state",),
    "maintenance_last_run_timestamp_seconds": ("kind",),
    "maintenance_last_run_seconds": ("kind",),
    "maintenance_last_run_ok": ("kind",),
    "site_role": ("role",),
    "site_member": ("follower",),
    "leader_failing_since_timestamp_seconds": ("step",),
    "reconcile_last_run_aborted": ("reason",),
    "reconcile_last_run_doubts": ("doubt",),
}
_LABELS_OF = {
    "sink": ("sink", "dataset"),
    "received": ("dataset",),
    "dataset": ("dataset",),
    "consumer": ("consumer", "dataset"),
    "follower": ("follower", "dataset", "shard"),
    "site": (),
    "arbiter": (),
    "leader": (),
    "following": ("dataset", "shard"),
    "maintenance": ("dataset",),
    "reconcile": (),
}
LABELS: Mapping[str, tuple[str, ...]] = {
    name: (*_LABELS_OF[name.partition("_")[0]], *_MORE_LABELS.get(name, ())) for name in HELP
}


@dataclass(frozen=True, slots=True)
class MetricSample:
    name: str
    labels: Mapping[str, str]
    value: float


def load_samples(
    config: LakeConfig, ledger: Ledger, lake: str, arbiter: ArbiterStatus | None = None
) -> list[MetricSample]:
    """From the ledger, and from the arbiter's answer if there is one. The cost depends on the number of sinks and
    datasets, not on the number of partitions."""
    with ledger.read_consistent() as connection:
        datasets, held = read_datasets(connection), receive_holds.list_holds(connection)
        known = [facts.dataset for facts in datasets]
        return samples(
            read_whole_sinks(connection, lake, known),
            read_maintenance(config, connection, known),
            read_reconcile(connection, config),
            read_receive(connection) or (),
            datasets,
            frozenset(dataset.name for dataset in known if dataset.id in held),
            read_followers(connection),
            read_site(config, connection),
            read_leadership(connection, arbiter),
            read_consumers(connection),
        )


def samples(
    sinks: Sequence[WholeSink],
    maintenance: MaintenanceStatus | None,
    reconcile: ReconcileStatus,
    received: Sequence[ReceiveStatus] = (),
    datasets: Sequence[DatasetFacts] = (),
    receivers_held: Collection[str] = (),
    followers: Sequence[FollowerStatus] = (),
    site: SiteStatus = LEADS,
    leadership: Leadership = UNASKED,
    consumers: Sequence[ConsumerStatus] = (),
) -> list[MetricSample]:
    """What is not known is left out. `receivers_held`: datasets whose receiver is on hold."""
    found = [
        *_of_sinks(sinks),
        *_of_receiver(received),
        *(("received_held", {"dataset": name}, 1) for name in receivers_held),
        *(s for facts in datasets for s in _of_table(facts)),
        *(s for d in (maintenance.datasets if maintenance else ()) for s in _of_dataset(d)),
        *(s for one in consumers for s in _of_consumer(one)),
        *(s for shard in followers for s in _of_follower(shard)),
        *_of_site(site),
        *_of_leadership(leadership),
        *_of_reconciler(reconcile),
    ]
    return [MetricSample(PREFIX + name, labels, float(value)) for name, labels, value in found if value is not None]


_NamedValue = tuple[str, dict[str, str], float | None]


def _of_consumer(one: ConsumerStatus) -> Iterator[_NamedValue]:
    labels = {"consumer": one.name, "dataset": one.dataset}
    yield "consumer_watermark", labels, one.watermark
    yield "consumer_lag_rows", labels, one.lag_rows
    yield "consumer_lag_seconds", labels, one.lag_seconds
    yield "consumer_heard_of_timestamp_seconds", labels, _seconds(one.reported_at)
    yield "consumer_held_since_timestamp_seconds", labels, _seconds(one.held_since)
    yield "consumer_dropped_upto", labels, one.dropped_upto


def _of_follower(shard: FollowerStatus) -> Iterator[_NamedValue]:
    labels = {"follower": shard.name, "dataset": shard.dataset, "shard": str(shard.shard)}
    yield "follower_lag_segments", labels, shard.lag_segments
    yield "follower_lag_rows", labels, shard.lag_rows
    yield "follower_lag_seconds", labels, shard.lag_seconds
    yield "follower_heard_of_timestamp_seconds", labels, _seconds(shard.reported_at)
    yield "follower_held_since_timestamp_seconds", labels, _seconds(shard.held_since)
    yield "follower_dropped_upto", labels, shard.dropped_upto


def _of_site(site: SiteStatus) -> Iterator[_NamedValue]:
    yield "site_role", {"role": site.role}, 1
    yield "site_term", {}, site.term
    if (leader := site.leader) is not None:
        yield "leader_answered_timestamp_seconds", {}, _seconds(leader.answered_at)
        step = {"step": leader.failed_step or ""}
        yield "leader_failing_since_timestamp_seconds", step, _seconds(leader.failing_since)
    for shard in site.shards:
        labels = {"dataset": shard.dataset, "shard": str(shard.shard)}
        yield "following_lag_segments", labels, shard.lag_segments
        yield "following_lag_rows", labels, shard.lag_rows
        yield "following_lag_seconds", labels, shard.lag_seconds
        yield "following_applied", labels, shard.applied


def _of_leadership(found: Leadership) -> Iterator[_NamedValue]:
    yield "site_superseded", {}, int(found.superseded_term is not None)
    yield "site_promoting", {}, int(found.promoting)
    if (arbiter := found.arbiter) is None:
        return
    yield "arbiter_answers", {}, int(arbiter.trouble is None)
    yield "site_lease_seconds", {}, arbiter.lease_seconds
    yield "site_lease_left_seconds", {}, arbiter.lease_seconds_left
    for one in found.candidates:
        yield "site_member", {"follower": one.name}, int(one.member)


def _of_sinks(sinks: Sequence[WholeSink]) -> Iterator[_NamedValue]:
    for one in sinks:
        labels = {"sink": one.sink.name, "dataset": one.dataset_name}
        yield "sink_lag_rows", labels, one.lag_rows
        yield "sink_lag_seconds", labels, one.lag_seconds
        yield "sink_state", {**labels, "state": one.state}, 1
        yield "sink_failed_ticks", labels, one.sink.failures
        yield "sink_delivered_rows", labels, one.exported_rows
        yield "sink_quarantined_rows", labels, one.quarantined_rows
        yield "sink_held_rows", labels, one.held_rows
        yield "sink_held_since_timestamp_seconds", labels, _seconds(one.held_since)
        yield "sink_lost_rows", labels, one.lost.rows
        yield "sink_unknown_losses", labels, one.lost.unknown


def _of_receiver(received: Sequence[ReceiveStatus]) -> Iterator[_NamedValue]:
    for r in received:
        if not r.dropped:
            labels = {"dataset": r.dataset}
            yield "received_waiting_rows", labels, r.rows
            yield "received_waiting_bytes", labels, r.bytes
            yield "received_oldest_timestamp_seconds", labels, _seconds(r.oldest)
            yield "received_set_aside_bodies", labels, r.set_aside.bodies
            yield "received_unrecorded_bodies", labels, r.unrecorded.files
    for name in sorted({r.dataset for r in received if r.dropped}):  # several of one name may have been dropped
        size = sum(r.bytes + r.set_aside.bytes for r in received if r.dropped and r.dataset == name)
        yield "received_dropped_bytes", {"dataset": name}, size


def _of_table(facts: DatasetFacts) -> Iterator[_NamedValue]:
    labels, counts = {"dataset": facts.dataset.name}, facts.counts
    yield "dataset_sealed", labels, facts.sealed
    yield "dataset_allocated", labels, facts.allocated
    yield "dataset_open_blocks", labels, len(facts.open_blocks)
    oldest = min((block.head.reserved_at for block in facts.open_blocks), default=None)
    yield "dataset_oldest_open_block_timestamp_seconds", labels, _seconds(oldest)
    if counts is not None:
        yield "dataset_unnumbered_rows", labels, counts.unnumbered
        if counts.twice is not None:
            yield "dataset_foreign_rows", labels, counts.foreign
            yield "dataset_number_twice", labels, int(counts.twice_first is not None)
    yield "dataset_refused", labels, int(bool(facts.state.trouble or facts.state.doubt))


def _of_dataset(d: DatasetMaintenance) -> Iterator[_NamedValue]:
    labels = {"dataset": d.dataset}
    yield "dataset_floor", labels, d.floor
    held = [h.rows for h in d.held_by]
    yield "dataset_held_rows", labels, None if None in held else max((rows or 0 for rows in held), default=0)
    for run in d.last:
        of = {**labels, "kind": run.kind}
        yield "maintenance_last_run_timestamp_seconds", of, _seconds(run.started_at)
        if run.ended_at is not None:
            yield "maintenance_last_run_seconds", of, (run.ended_at - run.started_at).total_seconds()
            yield "maintenance_last_run_ok", of, None if run.was_called_off else int(run.outcome == "done")


def _of_reconciler(found: ReconcileStatus) -> Iterator[_NamedValue]:
    yield "reconcile_last_run", {}, found.last_run
    yield "reconcile_last_run_ended_timestamp_seconds", {}, _seconds(found.ended_at)
    if found.last_run is not None:
        yield "reconcile_last_run_ok", {}, int(found.aborted is None)
    if found.aborted is not None:
        yield "reconcile_last_run_aborted", {"reason": found.aborted}, 1
    for doubt in found.doubts or ():
        yield "reconcile_last_run_doubts", {"doubt": doubt}, 1
    if (seen := found.compared) is not None:
        yield "reconcile_compared_timestamp_seconds", {}, _seconds(seen.at)
        yield "reconcile_orphan_files", {}, seen.orphans
        yield "reconcile_missing_files", {}, seen.missing
        yield "reconcile_partial", {}, int(seen.partial)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def exposition(found: Sequence[MetricSample]) -> str:
    """The text format of Prometheus. A name's samples come together, under its help."""
    return generate_latest(_Gauges(found)).decode()


class _Gauges(Collector):
    def __init__(self, found: Sequence[MetricSample]) -> None:
        self._by_name: dict[str, list[MetricSample]] = {}
        for s in found:
            self._by_name.setdefault(s.name, []).append(s)

    def collect(self) -> Iterator[Metric]:
        for name, text in HELP.items():
            if own := self._by_name.get(PREFIX + name):
                family = Metric(PREFIX + name, text, "gauge")
                family.samples = [PrometheusSample(s.name, dict(s.labels), s.value) for s in own]
                yield family
