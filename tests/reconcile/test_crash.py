"""`kill -9` before and after each step of acting, in a process of its own: the record is right afterwards, whatever
was set aside can be brought back, and the next run goes on. And a process that is stopped, outlived, and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline.core import failpoints
from strandline.core.records.reconcile_records import AbortReason, Asked, SweptState
from strandline.ledger.deliver import losses, sinks
from strandline.reconcile import settle
from tests.fork_server import Forked
from tests.reconcile.buckets import put_object
from tests.reconcile.test_quarantined_live_files import set_aside
from tests.reconcile.whole_lakes import ACT, REPORT, MakeLake, WholeLake, there
from tests.servers import S3

pytestmark = pytest.mark.timeout(600)

LEASE_SECONDS = 60
SHORT_SECONDS = 1
ORPHANS = 5
DROP_POINTS = [p for p in failpoints.POINTS if p.startswith("reconcile.") and "drop" in p]
FILE_POINTS = [
    "reconcile.after_start",
    "reconcile.before_files",
    "reconcile.after_files_record",
    "reconcile.between_files",
    "reconcile.between_files@3",
    "reconcile.after_files_moved",
    "reconcile.after_files_checked",
    "reconcile.after_files",
    "reconcile.before_files@2",
    "reconcile.before_end",
]
DELETE_POINTS = ["reconcile.after_delete_record", "reconcile.after_deleted"]
RESTORE_POINTS = [
    "reconcile.before_restore",
    "reconcile.before_restore@3",
    "move_file.before_kept_goes",
    "reconcile.after_restored",
    "reconcile.after_restore",
]
BACK_POINTS = ["reconcile.after_brought_back"]
PURGE_POINTS = ["reconcile.after_purge_record", "reconcile.after_purged"]


@pytest.fixture
def lake(make_lake: MakeLake) -> WholeLake:
    return make_lake(4, lease_seconds=LEASE_SECONDS, batch_size=3, quarantine_days=0)


@pytest.fixture
def short_lease(make_lake: MakeLake) -> WholeLake:
    """For a run that is stopped: by its own clock, too, its lease must have run out when it goes on."""
    return make_lake(4, lease_seconds=SHORT_SECONDS, batch_size=3, quarantine_days=0)


def start(lake: WholeLake, *arguments: str, failpoint: str = "") -> Forked:
    return Forked(
        ["tests.reconcile.sweeper", str(lake.home), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"STRANDLINE_FAILPOINT": failpoint},
    )


def outlive_lease(lake: WholeLake) -> None:
    """As if the lease of the run had run out."""
    with lake.lake.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE sweep_lease SET until = until - 3600000000 WHERE until IS NOT NULL")


def killed_at(lake: WholeLake, point: str, *arguments: str) -> None:
    name, _, nth = point.partition("@")
    process = start(lake, *arguments, failpoint=f"{name}=kill" + (f"@{nth}" if nth else ""))
    out, err = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached: {out} {err}"
    outlive_lease(lake)


def assert_record_is_right(lake: WholeLake, run: int) -> None:
    """Every file of the run is where the ledger says that it is."""
    for file in lake.swept(run):
        at_path, at_quarantine = there([file.path, file.kept_at])
        expected = {
            SweptState.HELD: (False, True),
            SweptState.LEFT: (True, False),
            SweptState.RESTORED: (True, False),
            SweptState.PURGED: (False, False),
        }
        assert (at_path, at_quarantine) == expected[file.state], file


def audited(lake: WholeLake, event: str, run: int, what: str = "files") -> int:
    """All that the audit says a run did, whoever said it."""
    return sum(told[what] for told in lake.details(event) if told["run"] == run)


@pytest.mark.parametrize("point", FILE_POINTS)
def test_a_run_killed_while_it_sets_files_aside_loses_none_and_can_be_undone(lake: WholeLake, point: str) -> None:
    orphans, live = lake.puts(ORPHANS), lake.data_files()
    killed_at(lake, point, "act")
    assert all(there(live))
    report = lake.run(REPORT)
    dead = lake.lake.reconciler.show(report.id - 1)[0]
    assert_record_is_right(lake, dead.id)
    moved = ORPHANS - sum(there(orphans))
    assert dead.aborted is AbortReason.DIED and dead.ended_at is not None
    assert dead.outcome.done.orphans == dead.held == moved == audited(lake, "reconcile.files_quarantined", dead.id)
    restored = lake.lake.reconciler.restore(dead.id)
    assert restored.restored == moved and not restored.lost and not restored.failed
    assert all(there(orphans)) and all(there(live))
    again = lake.run(ACT)
    assert again.aborted is None and again.outcome.done.orphans == ORPHANS and not any(there(orphans))


def test_what_a_dead_run_did_is_said_once_though_whoever_settles_it_dies_as_well(
    lake: WholeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.puts(2)
    killed_at(lake, "reconcile.after_files_moved", "act")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(settle, "_correct", dies)
        with pytest.raises(KeyboardInterrupt):
            lake.run(REPORT)
    (dead,) = {file.run for file in lake.swept(1)}
    lake.run(REPORT)
    assert audited(lake, "reconcile.files_quarantined", dead) == 2
    assert lake.lake.reconciler.show(dead)[0].outcome.done.orphans == 2


@pytest.mark.parametrize("point", DELETE_POINTS)
def test_a_run_killed_while_it_deletes_says_what_is_gone_and_the_rest_can_be_undone(
    lake: WholeLake, point: str
) -> None:
    orphans = lake.puts(ORPHANS)
    killed_at(lake, point, "delete")
    report = lake.run(REPORT)
    dead = lake.lake.reconciler.show(report.id - 1)[0]
    states = lake.states(dead.id)
    gone = [path for path, state in states.items() if state is SweptState.PURGED]
    assert (
        len(gone)
        == (3 if point == "reconcile.after_deleted" else 0)
        == audited(lake, "reconcile.files_deleted", dead.id)
    )
    lake.lake.reconciler.restore(dead.id)
    assert_record_is_right(lake, dead.id)
    assert [path for path in orphans if not Path(path).exists()] == gone


@pytest.mark.parametrize("point", BACK_POINTS)
def test_a_run_killed_while_it_brings_back_what_a_table_needs_is_not_said_to_keep_it(
    lake: WholeLake, point: str
) -> None:
    needed = lake.data_files()[0]
    set_aside(lake, needed)
    lake.settings(lease_seconds=LEASE_SECONDS)
    (keeper,) = lake.lake.reconciler.runs(9)
    killed_at(lake, point, "act")
    assert Path(needed).exists() and set(lake.states(keeper.id).values()) == {SweptState.HELD}
    lake.run(REPORT)
    assert lake.states(keeper.id) == {needed: SweptState.RESTORED}
    assert_record_is_right(lake, keeper.id)


@pytest.mark.parametrize("point", DROP_POINTS)
def test_a_run_killed_while_it_drops_entries_says_whether_it_did(lake: WholeLake, point: str) -> None:
    gone = lake.data_files()[:2]
    for path in gone:
        os.unlink(path)
    killed_at(lake, point, "act")
    committed = len(lake.data_files()) == 2
    assert committed == (point in ("reconcile.after_drop_commit", "reconcile.after_drop"))
    report = lake.run(REPORT)
    dead = lake.lake.reconciler.show(report.id - 1)[0]
    assert dead.aborted is AbortReason.DIED and dead.outcome.done.missing == (2 if committed else 0)
    assert audited(lake, "reconcile.entries_dropped", dead.id, "entries") == dead.outcome.done.missing
    assert report.outcome.planned.missing == (0 if committed else 2)
    again = lake.run(ACT)
    assert again.outcome.done.missing == (0 if committed else 2) and lake.count() == 6


@pytest.mark.parametrize("point", DROP_POINTS)
def test_what_a_sink_loses_by_a_run_that_is_killed_is_on_record_once_it_is_lost(lake: WholeLake, point: str) -> None:
    with lake.lake.ledger.write() as connection:
        sink = sinks.add(
            connection, instance="s", name="s", kind="files", dataset=lake.dataset.id, options={}, destination="s",
            start=None,
        )  # fmt: skip
    os.unlink(lake.data_files()[0])

    def lost() -> int:
        with lake.lake.ledger.read() as connection:
            return sum(x.rows or 0 for x in losses.of_sink(connection, sink))

    killed_at(lake, point, "give-up")
    committed = len(lake.data_files()) == 3
    lake.run(REPORT)
    assert lost() == (3 if committed else 0)
    lake.run(Asked(act=True, accept_loss=True))
    assert lost() == 3 and len(lake.data_files()) == 3


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_a_restore_that_is_killed_is_finished_by_the_next(lake: WholeLake, point: str) -> None:
    orphans = lake.puts(ORPHANS)
    run = lake.run(ACT).id
    killed_at(lake, point, "restore", str(run))
    restored = lake.lake.reconciler.restore(run)
    assert not restored.lost and not restored.failed and not restored.taken and all(there(orphans))
    assert_record_is_right(lake, run)
    assert set(lake.states(run).values()) == {SweptState.RESTORED}


@pytest.mark.parametrize("point", PURGE_POINTS)
def test_a_purge_that_is_killed_is_finished_by_the_next(lake: WholeLake, point: str) -> None:
    lake.puts(ORPHANS)
    run = lake.run(ACT).id
    killed_at(lake, point, "purge")
    purged = lake.lake.reconciler.purge()
    assert not purged.failed
    assert set(lake.states(run).values()) == {SweptState.PURGED}
    assert_record_is_right(lake, run)


# ---- where moving is copying -----------------------------------------------------------------------------------------


@dataclass
class Copying:
    """A lake whose files cannot be renamed into quarantine: in a bucket, or with a table on another disk."""

    lake: WholeLake
    put: Callable[[str, bytes], str]
    clock_seconds: float = 0
    """How exact the times of its files are."""

    def puts(self) -> dict[str, bytes]:
        made = {self.put(f"stray-{n}.parquet", b"x" * (n + 1)): b"x" * (n + 1) for n in range(ORPHANS)}
        time.sleep(self.clock_seconds)
        return made

    def there(self, *paths: str) -> list[bool]:
        return [self.lake.lake.reconciler.storage.find_file(path) is not None for path in paths]

    def sizes(self, paths: Iterable[str]) -> list[int]:
        stats = [self.lake.lake.reconciler.storage.find_file(path) for path in paths]
        return [stat.size for stat in stats if stat is not None]

    def assert_record_is_right(self, run: int) -> None:
        """A file that had stayed may have been copied."""
        may_be = {
            SweptState.HELD: [[False, True]],
            SweptState.LEFT: [[True, False], [True, True]],
            SweptState.RESTORED: [[True, False]],
            SweptState.PURGED: [[False, False]],
        }
        for file in self.lake.swept(run):
            assert self.there(file.path, file.kept_at) in may_be[file.state], file


@pytest.fixture(params=["bucket", "disk"])
def copying(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copying]:
    settings = {"lease_seconds": LEASE_SECONDS, "batch_size": 3, "quarantine_days": 0, "deletes_max_share": 1.0}
    if request.param == "bucket":
        s3: S3 = request.getfixturevalue("s3")
        bucket = s3.make_bucket()
        keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
        lake = WholeLake(tmp_path / "lake", {"warehouse": {"url": f"s3://{bucket}/lake"} | keys}, **settings)
        lake.append()
        data = "lake/default/events/data"
        yield Copying(lake, lambda name, content: put_object(s3, bucket, f"{data}/{name}", content), clock_seconds=1.1)
        lake.lake.close()
        return
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    lake = WholeLake(tmp_path / "lake", **settings)
    lake.append()
    with tempfile.TemporaryDirectory(dir=other) as folder:
        schema = lake.table().schema()
        far = lake.lake.catalog._catalog.create_table(("default", "far"), schema, location=f"file://{folder}/far")
        far.append(lake.table().scan().to_arrow())

        def put(name: str, content: bytes) -> str:
            path = Path(folder) / "far" / "data" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (time.time() - 864_000, time.time() - 864_000))
            return str(path)

        yield Copying(lake, put)
        lake.lake.close()


@pytest.mark.parametrize("point", ["move_file.before_original_goes", "move_file.before_original_goes@2"])
def test_a_run_killed_between_copy_and_delete_loses_nothing_and_can_be_undone(copying: Copying, point: str) -> None:
    assert_killed_and_undone(copying, point)


@pytest.mark.parametrize("copying", ["disk"], indirect=True)
@pytest.mark.parametrize("point", ["move_file.after_original_hidden@2"])
def test_a_run_killed_while_an_original_is_hidden_loses_nothing_and_can_be_undone(copying: Copying, point: str) -> None:
    assert_killed_and_undone(copying, point)


def assert_killed_and_undone(copying: Copying, point: str) -> None:
    lake, orphans = copying.lake, copying.puts()
    killed_at(lake, point, "act")
    dead = lake.run(REPORT).id - 1
    copying.assert_record_is_right(dead)
    moved = [path for path, state in lake.states(dead).items() if state is SweptState.HELD]
    restored = lake.lake.reconciler.restore(dead)
    assert restored.restored == len(moved) and not restored.lost and not restored.failed and not restored.taken
    assert copying.sizes(orphans) == [len(content) for content in orphans.values()] and lake.count() == 3
    again = lake.run(ACT)
    assert again.outcome.done.orphans == ORPHANS and not any(copying.there(*orphans))
    assert not lake.lake.reconciler.purge().failed
    assert not any(any(copying.there(file.path, file.kept_at)) for run in (dead, again.id) for file in lake.swept(run))
    left = [*lake.lake.reconciler.storage.files_under(lake.lake.config.warehouse_url.removeprefix("file://"))]
    assert not [path for path in left if "/quarantine/" in path]


@pytest.mark.parametrize("point", ["move_file.before_kept_goes", "move_file.before_kept_goes@3"])
def test_a_restore_killed_between_copy_and_delete_is_finished_by_the_next(copying: Copying, point: str) -> None:
    lake, orphans = copying.lake, copying.puts()
    run = lake.run(ACT)
    assert run.outcome.done.orphans == ORPHANS, run
    killed_at(lake, point, "restore", str(run.id))
    assert sum(copying.there(*orphans)) == int(point.partition("@")[2] or 1)
    restored = lake.lake.reconciler.restore(run.id)
    assert not restored.lost and not restored.failed and not restored.taken
    assert copying.sizes(orphans) == [len(content) for content in orphans.values()]
    copying.assert_record_is_right(run.id)
    assert set(lake.states(run.id).values()) == {SweptState.RESTORED}


# ---- a run that only seems dead --------------------------------------------------------------------------------------


def stopped_at(lake: WholeLake, point: str, *arguments: str) -> Forked:
    process = start(lake, *arguments, failpoint=f"{point}=stop")
    process.wait_until_stopped(200)
    time.sleep(SHORT_SECONDS + 0.1)
    return process


def go_on(process: Forked) -> None:
    process.send_signal(signal.SIGCONT)
    process.wait(200)


def test_a_stopped_run_that_goes_on_moves_nothing_more_once_another_has_taken_over(short_lease: WholeLake) -> None:
    lake = short_lease
    orphans = lake.puts(ORPHANS)
    process = stopped_at(lake, "reconcile.after_files_record", "act")
    report = lake.run(REPORT)
    go_on(process)
    assert all(there(orphans))
    dead = lake.lake.reconciler.show(report.id - 1)[0]
    assert dead.aborted is not None and dead.outcome.done.orphans == 0
    assert_record_is_right(lake, dead.id)


def test_a_stopped_run_cannot_drop_an_entry_whose_file_came_back(short_lease: WholeLake) -> None:
    """Its token is void: the commit that it had prepared is refused by the table itself."""
    lake = short_lease
    gone = lake.data_files()[0]
    content = Path(gone).read_bytes()
    os.unlink(gone)
    process = stopped_at(lake, "reconcile.after_drop_record", "act")
    Path(gone).write_bytes(content)
    lake.run(REPORT)
    go_on(process)
    assert len(lake.data_files()) == 4 and lake.count() == 12
    assert lake.run(REPORT).outcome.found.missing == 0


def test_a_file_that_a_stopped_run_moved_after_all_is_on_record_and_comes_back(short_lease: WholeLake) -> None:
    lake = short_lease
    orphans = lake.puts(1)
    process = stopped_at(lake, "reconcile.between_files", "act")
    report = lake.run(REPORT)
    go_on(process)
    dead = report.id - 1
    lake.lake.reconciler.restore(dead)
    assert all(there(orphans))
    assert_record_is_right(lake, dead)
