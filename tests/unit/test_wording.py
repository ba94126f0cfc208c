"""Counts in messages: one row is, two rows are."""

from __future__ import annotations

import ast
import io
import itertools
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

import strandline
from strandline.cli.commands import verify
from strandline.cli.render import maintain, sinks
from strandline.core.text.wording import agreeing, part, plural
from strandline.core.types import Seq, SeqRange
from strandline.deliver.send.rejection import TooMany
from strandline.deliver.send.split_rejected import describe_refusals
from strandline.deliver.sinks.row_problems import describe_rows
from strandline.deliver.verify.ranges import Fault, VerifyFinding
from strandline.deliver.verify.run import first_of_chunks
from strandline.deliver.verify.verdict import SinkVerdict, VerifyReport
from strandline.ledger.maintain.runs import MaintenanceKind as JobKind
from strandline.ledger.maintain.runs import MaintenanceOutcome, MaintenanceRun, MaintenanceRunId
from strandline.ledger.receive.senders import PlacedBody
from strandline.receive.count_received import ReceivedCounter, describe
from strandline.status.problems.lake_problems import find_sink_problems
from strandline.status.sinks import SinkStatus

NOW = datetime(2031, 4, 1, 12, tzinfo=UTC)
_NOUNS = "attempt|batche|bodie|branche|chunk|column|dataset|entrie|file|generation|line|manifest|number|object"
_NOUNS += "|partition|range|record|row|sink|snapshot|table|tag|thing|value"
_SPELLED = re.compile(rf" (?:[a-z]+ )?(?:{_NOUNS})s\b(?!/s)")


def test_a_count_has_its_noun_and_its_verb() -> None:
    assert [plural(n, "row", "is") for n in (0, 1, 2_000)] == ["0 rows are", "1 row is", "2,000 rows are"]
    assert [part(n, m, "row", "does") for n, m in ((1, 1), (1, 2), (2, 2_000))] == [
        "1 of 1 row does", "1 of 2 rows does", "2 of 2,000 rows do"
    ]  # fmt: skip
    assert [agreeing(n, "tiles") for n in (1, 2)] == ["tiles", "tile"]


def test_no_message_spells_a_count_and_its_noun_by_hand() -> None:
    """ "{count} rows" says "1 rows" one day. Limits, which are constants, may."""
    found = []
    root = Path(strandline.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for value, text in itertools.pairwise(node.values if isinstance(node, ast.JoinedStr) else []):
                if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant) and _by_hand(value, text):
                    found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def _by_hand(value: ast.FormattedValue, text: ast.Constant) -> bool:
    counted = value.value
    is_limit = isinstance(counted, ast.Name) and counted.id.isupper()
    is_worded = isinstance(counted, ast.Call) and ast.unparse(counted.func) in ("plural", "part")
    is_word = isinstance(counted, ast.Name | ast.Attribute) and value.format_spec is None
    return not (is_limit or is_worded or is_word) and _SPELLED.match(text.value) is not None


def said(*parts: RenderableType) -> str:
    out = Console(file=io.StringIO(), width=300)
    for one in parts:
        out.print(one)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def verdict(n: int, **changes: Any) -> SinkVerdict:
    made = SinkVerdict("out", "files", 1, ranges=n, rows=n, empty=n, under_way=n, gone=n, lost=n, watermark=Seq(9))
    return replace(made, **changes)


def verified(n: int) -> str:
    fault = VerifyFinding(Fault.MISSING, "out", "", None, "a", "b")
    wrong = verdict(n, findings=(fault,) * n)
    return said(*verify.rendered(VerifyReport((verdict(n), wrong))))


def sink(n: int) -> str:
    status = SinkStatus(
        "out", "files", "default.events", None, 1, 9, 0, 0.0, "active", None, None, 0, 0, 9, None, 0, None, "steady",
        0, 0, 0.0, held_rows=n, held_since=NOW, lost_rows=n,
    )  # fmt: skip
    return "\n".join(p.line for p in find_sink_problems([status], NOW)) + "\n" + sinks._held(status, NOW).plain


def inspected(n: int) -> str:
    body = PlacedBody(SeqRange(Seq(1), Seq(n)), n, "d", Seq(101), None)
    return describe(body, ReceivedCounter(n, 0))


def expired(n: int) -> str:
    result = {
        "snapshots_expired": n, "snapshots_before": 2 * n, "data_files_deleted": n, "delete_files_deleted": n,
        "manifests_deleted": n, "branches_kept": n, "tags_kept": n,
    }  # fmt: skip
    run = MaintenanceRun(
        MaintenanceRunId(1),
        "default.events",
        JobKind.EXPIRE,
        "h",
        False,
        False,
        NOW,
        NOW,
        NOW,
        MaintenanceOutcome.DONE,
        None,
        result,
    )
    return said(*maintain._expired(run, result)) + "\n" + maintain._again(n)


def purged(n: int) -> str:
    at = {"sink": "out", "kind": "files", "destination": "/out", "rows": n, "generation": 1, "older": False,
          "removed": False}  # fmt: skip
    return "\n".join(maintain._holders({"holding": [at], "may_hold": [], "named_before": []}))


@pytest.mark.parametrize(
    "of",
    [
        verified,
        sink,
        inspected,
        expired,
        purged,
        lambda n: describe_rows(SeqRange(Seq(1), Seq(9)), n, range(n), range(n), n),
        lambda n: describe_refusals(TooMany(n, n, False, "why"), n),
        lambda n: first_of_chunks(n, "1-9"),
    ],
)
def test_one_is_one_and_two_are_two(of: Any) -> None:
    one, two = of(1), of(2)
    assert not re.search(r"\b1 (?:of 1 )?\w+s (?:are|were|have|do|stand|tile|agree)\b", one), one
    assert not re.search(rf"\b1 (?:{_NOUNS})s\b", one), one
    assert not re.search(r"\b(?:are|were|have|do|them|they)\b", one), one
    assert re.search(r"\b2 (?:of 2 )?(?:other |data |delete )?\w+s\b", two), two
    assert not re.search(rf"\b2 (?:of 2 )?(?:{_NOUNS})s (?:that )?(?:is|was|has|does|stands|tiles|agrees)\b", two), two


def test_a_comparison_with_the_leader_tells_deleted_rows_from__program() -> None:
    from strandline.replicate.follow.compare_with_leader import DatasetVerdict

    one = DatasetVerdict("events", Seq(9), 7, 0, 1, 0, None, foreign=1)
    assert said(*verify.of_leader([one])) == (
        "✓ events: 7 rows agree with the leader's up to 9; 1 row is only here, deleted at the leader since\n"
        "! events: another program wrote 1 row into this site's table; no reader gets them\n"
    )
