"""Secrets in the options of sinks, and then a search for them in every answer, page, task, event and log line."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from strandline.cli.log_lines import log_lines
from strandline.core.errors import RefusedError, StorageError, UsageError
from strandline.core.roles import Role
from strandline.deliver.sinks.blobs.blob_sink import ObjectSink
from tests.serve.conftest import API, Served, description
from tests.waiting import eventually

CANARY = "c4n4ry"
"""In every secret below."""
OPTIONS = {
    "pg": ("postgres", {"dsn": "env:PG_DSN", "table": "t"}),
    "pg2": ("postgres", {"dsn": f"postgresql://u:{CANARY}-literal@127.0.0.1:1/d", "table": "t"}),
    "web": ("forward", {"url": "env:WEB_URL", "token": "env:WEB_TOKEN"}),
    "web2": ("forward", {"url": f"http://127.0.0.1:1/rows?key={CANARY}-query", "token": "env:WEB_TOKEN"}),
    "web3": ("forward", {"url": "http://127.0.0.1:1/rows", "token": f"{CANARY}-token"}),
    "bucket": ("s3", {"url": "s3://b/x", "endpoint": "http://127.0.0.1:1", "access_key": "env:S3_KEY",
                      "secret_key": "env:S3_SECRET"}),
}  # fmt: skip
ENVIRON = {
    "PG_DSN": f"postgresql://u:{CANARY}-dsn@127.0.0.1:1/d",
    "WEB_URL": f"http://127.0.0.1:1/rows?key={CANARY}-web",
    "WEB_TOKEN": f"{CANARY}-bearer",
    "S3_KEY": f"{CANARY}-access",
    "S3_SECRET": f"{CANARY}-secret",
}
LINKS = re.compile(r'<a[^>]*href="(/[^"#]*)"')


@pytest.mark.parametrize("settings", [{"forward": {"allow": ["127.0.0.1"]}}])
def test_no_answer_page_task_or_line_has_a_secret(
    served: Served, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    seen: dict[str, str] = {}
    real = ObjectSink.claimed

    def leaking(self: ObjectSink[object]) -> object:
        """A destination whose words repeat what it was told."""
        logging.getLogger("strandline.any").error(
            "refused %s", ENVIRON["S3_KEY"], exc_info=ValueError(ENVIRON["S3_SECRET"])
        )
        return real(self)

    def failing(self: ObjectSink[object]) -> object:
        """Quotes secrets that nobody has noted, in the ways that drivers do."""
        raise ValueError(
            f"cannot reach postgresql://u:{CANARY}-quoted@h/d, https://u:{CANARY}-http@h/ "
            f"or host=h password='{CANARY} x'"
        )

    def noted(client: httpx.Client, method: str, path: str, **more: object) -> httpx.Response:
        answer = client.request(method, path, **more)  # type: ignore[arg-type]
        seen[f"{method} {path} {len(seen)}"] = f"{answer.headers} {answer.text}"
        return answer

    with log_lines(as_json=True), served.as_role() as admin:
        out = {"name": "out", "dataset": dataset, "kind": "files", "options": {"path": str(tmp_path / "out")}}
        assert noted(admin, "POST", f"{API}/sinks", json=out).status_code == 201
        for name, (kind, options) in OPTIONS.items():
            noted(
                admin, "POST", f"{API}/sinks", json={"name": name, "dataset": dataset, "kind": kind, "options": options}
            )
        monkeypatch.setattr(ObjectSink, "claimed", leaking)
        place = noted(admin, "POST", f"{API}/sinks/out/reset", json={"to": "beginning"}).json()["place"]
        eventually(lambda: admin.get(place).json()["ended_at"])
        monkeypatch.setattr(ObjectSink, "claimed", failing)
        place = noted(admin, "POST", f"{API}/sinks/out/reset", json={"to": "beginning"}).json()["place"]
        eventually(lambda: admin.get(place).json()["ended_at"])
        assert "cannot reach postgresql://u:***@h/d" in admin.get(place).json()["error"]["message"]
        refused = noted(admin, "POST", f"{API}/sinks", json=out | {"name": f"postgresql://u:{CANARY}-named@h"})
        assert refused.status_code == 400 and "postgresql://u:***@h" in refused.json()["detail"]
    seen |= shown_anywhere(served, {"name": ["out", "pg", "web"], "dataset": [dataset]})
    said = capfd.readouterr()
    assert "refused ***" in said.err, "the log was written, and its secret was masked"
    seen |= {"standard output": said.out, "standard error": said.err}
    assert len(seen) > 30 and leaks(seen) == []


def shown_anywhere(served: Served, known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Every answer of the API, every page, and the ledger itself. `known`: values for what is in the paths."""
    seen: dict[str, str] = {}
    with served.as_role() as admin, served.client() as browser:
        assert browser.post(f"{API}/session", json={"token": served.secrets[Role.ADMIN]}).status_code == 201
        for path, operations in description()["paths"].items():
            if "get" in operations:
                held = re.findall(r"{(\w+)}", path)
                for value in known.get(held[0], ["1"]) if held else [""]:
                    answer = admin.get(re.sub(r"{\w+}", value, path))
                    seen[f"GET {answer.url.path}"] = f"{answer.headers} {answer.text}"
        pages = ["/"]
        for page in pages:
            if "/live" not in page and not page.startswith(("/static", "/api")):
                shown = browser.get(page)
                seen[f"page {page}"] = f"{shown.headers} {shown.text}"
                pages += [p for p in dict.fromkeys(LINKS.findall(shown.text)) if p not in pages and len(pages) < 60]
    assert {"/", "/sinks", "/runs", "/audit"} <= set(pages), sorted(pages)
    ledger = served.lake.config.ledger_file
    assert ledger is not None
    return seen | {f.name: f.read_bytes().decode("latin-1") for f in ledger.parent.glob(f"{ledger.name}*")}


def leaks(seen: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, text[max(0, text.index(CANARY) - 100) :][:200]) for name, text in seen.items() if CANARY in text]


WORDS = f"the value '{CANARY}-row' in `who = '{CANARY}-condition'`"
# What a purge fails with, and how its task tells that.
FAILURES: dict[str, tuple[Exception, str, str]] = {
    "UsageError": (UsageError(WORDS, hint=WORDS), "refused", "UsageError"),
    "RefusedError": (RefusedError(WORDS, hint=WORDS), "refused", "RefusedError"),
    "StorageError": (StorageError(WORDS, hint=WORDS), "failed", "StorageError"),
    "ValueError": (ValueError(WORDS), "failed", "FailedError"),
}


def test_neither_a_purge_nor_its_dry_run_repeats_the_condition_or_a_row(
    served: Served, dataset: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever it fails with: Spark's errors quote the condition, and values of rows."""
    failing: list[Exception] = []

    def purge(*_: object, **__: object) -> None:
        logging.getLogger("strandline.any").error("it begins")
        raise failing[0] from ZeroDivisionError(WORDS)

    monkeypatch.setattr("strandline.maintain.purge.run.purge", purge)
    seen: dict[str, str] = {}
    ids: dict[str, list[str]] = {"task": [], "run": []}
    with log_lines(as_json=True), served.as_role() as admin:
        for kind, (error, outcome, told) in FAILURES.items():
            failing[:] = [error]
            for dry_run in (True, False):
                wanted = {"dataset": dataset, "where": f"who = '{CANARY}-condition'", "dry_run": dry_run}
                begun = admin.post(f"{API}/maintenance/purge", json=wanted)
                assert begun.status_code == 202, begun.text
                place = begun.json()["place"]
                eventually(lambda place=place: admin.get(place).json()["ended_at"])
                found = admin.get(place).json()
                ids["task" if dry_run else "run"].append(place.rpartition("/")[2])
                if dry_run:
                    assert (found["outcome"], found["error"]["type"], found["error"]["hint"]) == (outcome, told, None)
                reason = found["error"]["message"] if dry_run else found["reason"]
                assert reason.startswith(f"{kind}; its message is not stored"), found
    said = capfd.readouterr()
    assert said.err.count("it begins") == 2 * len(FAILURES), "the log was written"
    seen |= {"standard output": said.out, "standard error": said.err}
    seen |= shown_anywhere(served, ids | {"name": ["events"], "dataset": [dataset]})
    assert len(seen) > 30 and leaks(seen) == []
