"""Named places where a test can kill, stop or fail the process.

`STRANDLINE_FAILPOINT=name=action` arms one point; several are separated by commas. Actions: `kill` (SIGKILL),
`stop` (SIGSTOP; the process continues after SIGCONT), `fail` (raises `FailpointError`). `name=action@3` acts on the
third hit. While nothing is armed, a point costs one check of an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

# Every point, in the order of the protocol. A test fails for a point that is never hit.
POINTS: tuple[str, ...] = (
    "reserve.before_witness",
    "reserve.after_witness",
    "reserve.after_commit",
    "stage.before_branch",
    "stage.after_branch",
    "stage.before_commit",
    "stage.after_commit",
    "stage.before_mark",
    "stage.after_mark",
    "publish.before_commit",
    "publish.after_commit",
    "settle.before_mark",
    "settle.after_mark",
    "abandon.before_witness",
    "abandon.after_witness",
    "abandon.after_commit",
    "abandon.after_branch",
    "open.before_epoch",
    "open.after_epoch",
    "open.after_roll_forward",
    "open.before_commit",
    "open.after_commit",
    "postponed.after_epoch",
    "postponed.after_roll_forward",
    "postponed.after_commit",
    "adopt.after_reserve",
    "adopt.before_commit",
    "adopt.after_commit",
    "adopt.after_mark",
    "deliver.after_lease",
    "deliver.after_fence",
    "deliver.after_pin",
    "deliver.before_plan",
    "deliver.after_plan",
    "deliver.before_send",
    "deliver.after_send",
    "deliver.before_acknowledge",
    "deliver.after_acknowledge",
    "deliver.after_mark",
    "deliver.after_close",
    "recover.before_accept_loss",
    "postgres.before_commit",
    "postgres.after_commit",
    "files.before_link",
    "files.after_link",
    "s3.before_put",
    "s3.after_put",
    "sink.before_mark",
    "sink.after_mark",
    "offer.before_record",
    "offer.after_record",
    "forward.before_post",
    "forward.after_post",
    "split.before_store",
    "split.after_store",
    "quarantine.before_object",
    "quarantine.after_object",
    "quarantine.after_record",
    "replay.after_number",
    "replay.after_send",
    "receive.before_spool",
    "receive.after_spool",
    "receive.before_commit",
    "receive.after_commit",
    "receive.after_batch",
    "receive.before_receipt",
    "receive.after_receipt",
    "receive.after_append",
    "receive.after_settle",
    "receive.after_removal",
    "receive.after_divide",
    "receive.after_set_aside",
    "spool.after_replay",
    "spool.after_discard",
    "spool.after_clear",
    "adopt_body.before_record",
    "adopt_body.after_record",
    "adopt_body.after_put_back",
    "settled.before_tag",
    "settled.after_tag",
    "maintain.after_begin",
    "compact.before_rewrite",
    "compact.before_commit",
    "compact.after_rewrite",
    "compact.after_manifests",
    "floor.before_witness",
    "floor.after_witness",
    "retain.after_floor",
    "retain.after_drop_marks",
    "retain.after_delete",
    "expire.after_settle",
    "expire.after_expire",
    "purge.after_record",
    "purge.after_table",
    "purge.after_elsewhere",
    "maintain.before_end",
    "reconcile.after_start",
    "reconcile.after_brought_back",
    "reconcile.before_drop",
    "reconcile.after_drop_record",
    "reconcile.after_drop_commit",
    "reconcile.after_drop",
    "reconcile.before_files",
    "reconcile.after_files_record",
    "reconcile.before_original_goes",
    "reconcile.after_original_hidden",
    "reconcile.between_files",
    "reconcile.after_files_moved",
    "reconcile.after_files_checked",
    "reconcile.after_files",
    "reconcile.after_delete_record",
    "reconcile.after_deleted",
    "reconcile.before_end",
    "reconcile.before_restore",
    "reconcile.before_kept_goes",
    "reconcile.after_restored",
    "reconcile.after_restore",
    "reconcile.after_purge_record",
    "reconcile.after_purged",
    "task.after_begin",
    "task.before_end",
    "task.after_end",
    "apply.after_step",
)


class FailpointError(RuntimeError):
    """Raised by a point that is armed with `fail`."""


@dataclass(slots=True)
class _Armed:
    action: str
    hits_left: int


_armed: dict[str, _Armed] = {}
_worker: dict[str, str] = {}
_victims: list[int] = []  # killed or stopped along with this process: the driver of a Spark worker


def arm(spec: str) -> None:
    """Arms the points of `spec` and disarms all others."""
    _armed.clear()
    for part in filter(None, (p.strip() for p in spec.split(","))):
        name, _, action = part.partition("=")
        action, _, nth = action.partition("@")
        if name not in POINTS:
            raise ValueError(f"no failpoint is named {name!r}")
        if action not in ("kill", "stop", "fail"):
            raise ValueError(f"a failpoint can kill, stop or fail; not {action!r}")
        _armed[name] = _Armed(action, int(nth or 1))


def arm_from(environ: Mapping[str, str]) -> None:
    """Arms the points that the environment names. Called once, where a process starts."""
    if spec := environ.get("STRANDLINE_FAILPOINT"):
        arm(spec)


def arm_worker(spec: str, driver: int) -> None:
    """For a Spark worker, which may have served another job before: `kill` and `stop` hit the driver and the worker."""
    if spec != _worker.get("spec", ""):
        arm(spec)
        _worker["spec"] = spec
    if driver != os.getpid():
        _victims[:] = [driver]


def hit(name: str) -> None:
    if not _armed:
        return
    if name not in POINTS:
        raise ValueError(f"no failpoint is named {name!r}")
    armed = _armed.get(name)
    if armed is None:
        return
    armed.hits_left -= 1
    if armed.hits_left != 0:
        return
    match armed.action:
        case "kill":
            _signal(signal.SIGKILL)
        case "stop":
            _signal(signal.SIGSTOP)
        case _:
            raise FailpointError(name)


def _signal(number: int) -> None:
    for process in _victims:
        os.kill(process, number)
    os.kill(os.getpid(), number)
