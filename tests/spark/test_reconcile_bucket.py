"""A lake in a bucket and above `references_max`: executors list the bucket, and the rest is as it is without Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from strandline.core.records.reconcile_records import AbortReason, Asked, ReconcileRun
from strandline.reconcile.model import Finding
from tests.reconcile.buckets import put_object
from tests.reconcile.whole_lakes import ACT, REPORT, WholeLake
from tests.servers import S3

NAMES = ("a b.parquet", "100%.parquet", "p=ü/x.parquet", "p=1/q=2/deep.parquet", "n\nl.parquet", "odd/notes.txt")
SETTINGS: dict[str, Any] = {"deletes_max_share": 1.0, "batch_size": 2}


def found_by(lake: WholeLake, asked: Asked) -> tuple[ReconcileRun, list[Finding]]:
    found: list[Finding] = []
    run = lake.run(asked, on_finding=found.append)
    while run.aborted is AbortReason.COMMIT_FAILED and "parsing the HTTP request" in (run.why or ""):
        found.clear()  # the server of the tests says so once in many requests
        run = lake.run(asked, on_finding=found.append)
    assert run.aborted is None and not run.outcome.partial, run
    return run, found


def test_a_bucket_that_executors_list_has_the_same_findings_and_is_repaired_alike(
    spark: Any, tmp_path: Path, s3: S3
) -> None:
    bucket = s3.make_bucket()
    keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
    lake = WholeLake(tmp_path / "lake", {"warehouse": {"url": f"s3://{bucket}/lake"} | keys}, **SETTINGS)
    for _ in range(3):
        lake.append()
    objects = s3.server.folder / "data"
    live = {objects / path.removeprefix("s3://") for path in lake.data_files()}
    for left in (objects / bucket / "lake/default/events/data").iterdir():
        if left not in live:
            left.unlink()  # of an append that the server refused
    gone = objects / lake.data_files()[0].removeprefix("s3://")
    content = gone.read_bytes()
    gone.unlink()
    put = [put_object(s3, bucket, f"lake/default/events/data/{name}", b"orphan") for name in NAMES[:4]]
    put.append(f"s3://{bucket}/lake/default/events/data/{NAMES[4]}")
    strays = [objects / path.removeprefix("s3://") for path in put]
    strays[-1].write_bytes(b"orphan")  # obstore does not put an object of such a name
    put_object(s3, bucket, f"lake/default/{NAMES[5]}", b"foreign")
    time.sleep(1.1)  # a bucket's times are whole seconds
    _, here = found_by(lake, REPORT)
    assert len(here) == 1 + len(NAMES)
    lake.settings(references_max=1, **SETTINGS)
    run, there = found_by(lake, ACT)
    assert there == here and run.storage == "s3"
    assert (run.outcome.found.missing, run.outcome.found.orphans, run.outcome.found.foreign) == (1, 5, 1)
    assert (run.outcome.done.missing, run.outcome.done.orphans, run.outcome.done.failed) == (1, 0, 0)
    assert all(stray.exists() for stray in strays) and lake.count() == 6
    gone.write_bytes(content)  # history has its entry: while its file is missing, no orphan of the table goes
    run, _ = found_by(lake, ACT)
    assert (run.outcome.done.missing, run.outcome.done.orphans, run.outcome.done.failed) == (0, 5, 0)
    assert not any(stray.exists() for stray in strays) and all(path.exists() for path in live)
    restored = lake.lake.reconciler.restore(run.id)
    assert restored.restored == 5 and [stray.read_bytes() for stray in strays] == [b"orphan"] * 5
    lake.lake.close()
