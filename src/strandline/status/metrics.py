"""The numbers of `status` as monitoring reads them: how sinks, the receiver, maintenance and the reconciler fare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from strandline.core.settings import LakeConfig
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.status.maintenance import DatasetMaintenance, MaintenanceStatus, read_maintenance
from strandline.status.receive import ReceiveStatus, read_receive
from strandline.status.reconcile import ReconcileStatus, read_reconcile
from strandline.status.whole_sinks import SinkTotals, read_totals

PREFIX = "strandline_"
HELP: Mapping[str, str] = {
    "sink_lag_rows": "Settled rows that the sink does not have yet.",
    "sink_lag_seconds": "For how long the oldest of them has been settled.",
    "sink_state": "1 for the state that the sink is in: active, paused, waiting (to try again) or stopped.",
    "sink_failed_ticks": "Ticks in a row that did not get through.",
    "sink_delivered_rows": "Rows that were delivered in this generation of the sink.",
    "sink_quarantined_rows": "Rows that the sink refused and that are in quarantine.",
    "sink_held_rows": "Rows that are due for deletion and stay, because the sink does not have them.",
    "sink_held_since_timestamp_seconds": "Since when the sink holds retention back; absent while it does not.",
    "sink_lost_rows": "Rows that were deleted before the sink had them, in this generation of it.",
    "sink_unknown_losses": "Ranges of sequence numbers of which nobody can tell how many rows the sink lost.",
    "received_waiting_rows": "Rows that were received over HTTP and wait to be ingested.",
    "received_waiting_bytes": "Bytes of their files in the spool.",
    "received_oldest_timestamp_seconds": "When the oldest of them was received; absent while there is none.",
    "received_set_aside_bodies": "Bodies that were received, could not be ingested, and wait for a person.",
    "received_unrecorded_bodies": "Bodies in the spool that the ledger cannot record, so that nobody ingests them.",
    "received_dropped_bytes": "Bytes in the spool of bodies that were received for a dataset that was dropped.",
    "dataset_floor": "Rows up to this sequence number may have been deleted by retention.",
    "dataset_held_rows": "Rows that are due for deletion and stay, for the sink that holds the most of them.",
    "maintenance_last_run_timestamp_seconds": "When the newest run of its kind began; dry runs do not count.",
    "maintenance_last_run_seconds": "How long it took; absent while it is under way.",
    "maintenance_last_run_ok": "1 if it was done, 0 if it failed, died, was refused or skipped; absent until then, "
    "and if it was called off.",
    "reconcile_last_run": "The number of the newest run of the reconciler that ended: it rises with every run.",
    "reconcile_last_run_ended_timestamp_seconds": "When it ended.",
    "reconcile_last_run_ok": "1 if it went through, 0 if it ended early.",
    "reconcile_last_run_aborted": "1 for the reason that it ended early for; absent if it did not.",
    "reconcile_last_run_doubts": "1 for each reason why what it says is not the whole truth; absent if there is none.",
    "reconcile_compared_timestamp_seconds": "When the newest run began that compared tables and storage.",
    "reconcile_orphan_files": "Files that it found, that nothing references, and that it left.",
    "reconcile_missing_files": "Entries that it found, whose file is gone, and that it left.",
    "reconcile_partial": "1 if it could not look everywhere.",
}
"""All are gauges: a sink that is reset begins anew, and runs are forgotten in time."""

_MORE_LABELS = {
    "sink_state": ("state",),
    "maintenance_last_run_timestamp_seconds": ("kind",),
    "maintenance_last_run_seconds": ("kind",),
    "maintenance_last_run_ok": ("kind",),
    "reconcile_last_run_aborted": ("reason",),
    "reconcile_last_run_doubts": ("doubt",),
}
_LABELS_OF = {
    "sink": ("sink", "dataset"),
    "received": ("dataset",),
    "dataset": ("dataset",),
    "maintenance": ("dataset",),
    "reconcile": (),
}
LABELS: Mapping[str, tuple[str, ...]] = {
    name: (*_LABELS_OF[name.partition("_")[0]], *_MORE_LABELS.get(name, ())) for name in HELP
}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def load_samples(config: LakeConfig, ledger: Ledger, lake: str) -> list[Sample]:
    """From the ledger alone. What it costs follows the number of sinks and datasets, not that of partitions."""
    with ledger.read_at_once() as connection:
        known = datasets.list_datasets(connection)
        return samples(
            read_totals(connection, lake, known),
            read_maintenance(config, connection, known),
            read_reconcile(connection, config),
            read_receive(connection) or (),
        )


def samples(
    sinks: Sequence[SinkTotals],
    maintenance: MaintenanceStatus | None,
    reconcile: ReconcileStatus,
    received: Sequence[ReceiveStatus] = (),
) -> list[Sample]:
    """What is not known is left out."""
    found = [
        *_of_sinks(sinks),
        *_of_receiver(received),
        *(s for d in (maintenance.datasets if maintenance else ()) for s in _of_dataset(d)),
        *_of_reconciler(reconcile),
    ]
    return [Sample(PREFIX + name, labels, float(value)) for name, labels, value in found if value is not None]


_NamedValue = tuple[str, dict[str, str], float | None]


def _of_sinks(sinks: Sequence[SinkTotals]) -> Iterator[_NamedValue]:
    for one in sinks:
        labels = {"sink": one.name, "dataset": one.dataset}
        yield "sink_lag_rows", labels, one.lag_rows
        yield "sink_lag_seconds", labels, one.lag_seconds
        yield "sink_state", {**labels, "state": one.state}, 1
        yield "sink_failed_ticks", labels, one.retries
        yield "sink_delivered_rows", labels, one.exported
        yield "sink_quarantined_rows", labels, one.quarantined
        yield "sink_held_rows", labels, one.held_rows
        yield "sink_held_since_timestamp_seconds", labels, _seconds(one.held_since)
        yield "sink_lost_rows", labels, one.lost_rows
        yield "sink_unknown_losses", labels, one.unknown_losses


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


def exposition(found: Sequence[Sample]) -> str:
    """The text format of Prometheus. A name's samples come together, under its help."""
    return generate_latest(_Gauges(found)).decode()


class _Gauges(Collector):
    def __init__(self, found: Sequence[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for s in found:
            self._by_name.setdefault(s.name, []).append(s)

    def collect(self) -> Iterator[Metric]:
        for name, text in HELP.items():
            if own := self._by_name.get(PREFIX + name):
                family = Metric(PREFIX + name, text, "gauge")
                family.samples = [PrometheusSample(s.name, dict(s.labels), s.value) for s in own]
                yield family
