"""What is told of a finding, in files and to people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.cli.main import run as cli
from strandline.reconcile.compare.findings import Spill, gathered, in_memory, orphan_finding, partition_of
from strandline.reconcile.model import FileContent, FindingKind, Protection
from strandline.reconcile.rendering import document
from tests.reconcile.whole_lakes import WholeLake


@pytest.mark.parametrize(
    ("path", "partition"),
    [
        ("/wh/ns/t/data/day=2026-01-01/region=E+U/f.parquet", "day=2026-01-01/region=E+U"),
        ("/wh/ns/t/data/0101/1100/p=1/f.parquet", "p=1"),  # as Iceberg's layout for object stores has it
        ("/wh/a=b/t/data/f.parquet", None),
        ("/wh/a=b/t/data/p=1/f=2.parquet", "p=1"),
        ("/wh/ns/t/data/=1/f.parquet", None),
        ("/wh/ns/t/data/f.parquet", None),
    ],
)
def test_a_partition_is_what_the_folders_say_that_a_file_lies_in(path: str, partition: str | None) -> None:
    assert partition_of(path) == partition


def test_an_orphan_is_told_with_its_partition_wherever_findings_are_kept() -> None:
    kind, escaped = FindingKind.ORPHAN, "p=a%2Fb+c"
    judged = [
        (kind, f"/wh/t/data/{escaped}/f.parquet", "t", 1, 7, None, FileContent.DATA),
        (kind, "/wh/t/metadata/p=1/f.avro", "t", 1, 7, None, FileContent.METADATA),
        (FindingKind.FOREIGN, "/wh/x/p=1/f", None, 1, 7, Protection.LAYOUT, FileContent.UNKNOWN),
    ]
    for store in (in_memory, Spill):
        drift = gathered([], judged, list, 3, store)
        assert {f.path: f.partition for f in drift.orphans()} == {j[1]: None for j in judged} | {judged[0][1]: escaped}
    assert document(orphan_finding(judged[0]))["partition"] == "p=a/b c"


def test_the_report_and_the_findings_name_the_partition_of_an_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = WholeLake(tmp_path / "lake")
    lake.append()
    lake.put("kind=a%2Fb/stray.parquet")
    monkeypatch.chdir(lake.home)
    monkeypatch.setenv("COLUMNS", "400")
    assert cli(["reconcile", "--findings", "found.jsonl"]) == 0
    assert "stray.parquet of default.events in kind=a/b" in " ".join(capsys.readouterr().out.split())
    (finding,) = [json.loads(line) for line in Path("found.jsonl").read_text("utf-8").splitlines()]
    assert (finding["kind"], finding["partition"]) == ("orphan", "kind=a/b")
    lake.lake.close()
