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

# Every point, by step and in the order of the protocol: `reserve.before_witness`, … A test fails for a point that is
# never hit.
_STEPS: Mapping[str, str] = {
    "create": "after_table",
    "reserve": "before_witness after_witness after_commit",
    "stage": "before_branch after_branch before_commit after_commit before_mark after_mark",
    "publish": "before_commit after_commit",
    "settle": "before_mark after_mark",
    "abandon": "before_witness after_witness after_commit after_branch",
    "resync": "before_epoch after_epoch after_roll_forward before_commit after_commit",
    "postponed": "after_epoch after_roll_forward after_commit",
    "adopt": "after_reserve before_commit after_commit after_mark",
    "deliver": (
        "after_lease after_fence after_pin before_plan after_plan before_send after_send before_acknowledge "
        "after_acknowledge after_mark after_close"
    ),
    "recover": "before_accept_loss",
    "postgres": "before_commit after_commit",
    "iceberg": "before_commit after_commit",
    "files": "before_link after_link",
    "s3": "before_put after_put",
    "sink": "before_mark after_mark",
    "offer": "before_record after_record",
    "forward": "before_post after_post",
    "split": "before_store after_store",
    "quarantine": "before_object after_object after_record",
    "replay": "after_number after_send",
    "receive": (
        "before_spool after_spool before_commit after_commit after_batch before_receipt after_receipt after_append "
        "after_settle after_removal after_divide after_set_aside"
    ),
    "spool": "after_replay after_discard after_clear",
    "adopt_body": "before_record after_record after_put_back",
    "settled": "before_tag after_tag",
    "maintain": "after_begin before_end after_called_off",
    "compact": "before_rewrite before_commit after_rewrite after_manifests",
    "floor": "before_witness after_witness",
    "retain": "after_floor after_drop_marks after_delete",
    "expire": "after_settle after_expire",
    "purge": "after_record before_witness after_witness after_number after_table after_elsewhere",
    "reconcile": (
        "after_start after_brought_back before_drop after_drop_record after_drop_commit after_drop before_files "
        "after_files_record between_files after_files_moved after_files_checked after_files after_delete_record "
        "after_deleted before_end before_restore after_restored after_restore after_purge_record after_purged "
        "after_called_off"
    ),
    "move_file": "before_original_goes after_original_hidden before_kept_goes",
    "follower": "after_record",
    "registration": "before_witness after_witness",
    "removal": "after_mark after_write_off after_commit",
    "lead": "after_followed",
    "record": "before_witness after_witness after_commit",
    "behind": "before_epoch after_epoch before_commit after_commit",
    "announced_bodies": "after_receipt after_record",
    "follow": (
        "after_table after_dataset before_alter after_alter after_take before_settle after_settle after_purge_record "
        "after_purge before_drop after_drop before_checkpoint after_checkpoint before_acknowledge after_acknowledge"
    ),
    "arbiter": "before_put after_put",
    "cut": (
        "after_epoch after_files after_record after_branches after_delete before_settle before_witness after_witness "
        "after_settle"
    ),
    "rejoin": "before_witness after_witness after_commit after_bodies",
    "promote": "after_begin after_put after_claim after_publish after_cuts before_witness after_witness after_commit",
    "apply": "after_step",
    "move": (
        "after_close between_files after_files between_tables after_tables before_copy_commit after_copy after_witness "
        "between_old_names after_old_catalog after_leave after_reopen after_old_witness after_drop "
        "after_settings"
    ),
    "task": "after_begin before_end after_end",
}
POINTS = tuple(f"{step}.{moment}" for step, moments in _STEPS.items() for moment in moments.split())


class FailpointError(RuntimeError):
    """Raised by a point that is armed with `fail`."""


@dataclass(slots=True)
class _Armed:
    action: str
    hits_left: int


_armed: dict[str, _Armed] = {}
_worker: dict[str, str] = {}
_also_signalled: list[int] = []  # processes that get the same signal: the driver of a Spark worker


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
        _also_signalled[:] = [driver]


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
    for process in _also_signalled:
        os.kill(process, number)
    os.kill(os.getpid(), number)
