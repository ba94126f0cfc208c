"""The API as its users see it: datasets, sinks, tokens, audit, pages, and what a limited token sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from strandline.core.errors import LedgerBusy, NoSuchSink, NotLeader
from strandline.core.roles import Role
from strandline.core.types import Seq, SeqRange
from strandline.ledger.ingest import blocks, restored_blocks
from strandline.ledger.replicate import sites
from strandline.serve import health
from strandline.serve.app import describe
from strandline.serve.auth.sessions import COOKIE
from tests.serve.conftest import API, COLUMNS, Served, description
from tests.waiting import eventually


def add_sink(admin: httpx.Client, folder: Path, name: str = "partner", dataset: str = "events") -> httpx.Response:
    options = {"path": str(folder / name)}
    return admin.post(f"{API}/sinks", json={"name": name, "dataset": dataset, "kind": "files", "options": options})


def test_a_dataset_is_created_shown_altered_and_dropped(admin: httpx.Client, dataset: str) -> None:
    assert [d["name"] for d in admin.get(f"{API}/datasets").json()["datasets"]] == ["default.events"]
    shown = admin.get(f"{API}/datasets/events").json()
    assert [c["name"] for c in shown["columns"]] == ["id", "text"] and shown["problem"] is None
    changes = {"rename": [{"name": "text", "to": "words"}], "add": [{"name": "at", "type": "timestamptz"}]}
    altered = admin.patch(f"{API}/datasets/default.events", json=changes)
    assert altered.status_code == 200 and [c["name"] for c in altered.json()["columns"]] == ["id", "words", "at"]
    assert admin.delete(f"{API}/datasets/events").json()["dropped"] == "default.events"
    assert admin.get(f"{API}/datasets/events").status_code == 404
    assert admin.post(f"{API}/datasets", json={"name": "a b", "columns": COLUMNS}).status_code == 400


def test_the_same_dataset_twice_is_refused(admin: httpx.Client, dataset: str) -> None:
    again = admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS})
    assert again.status_code == 409 and "default.events" in again.json()["detail"]


def test_blocks_and_the_seal_of_a_dataset(served: Served, admin: httpx.Client, dataset: str) -> None:
    assert admin.get(f"{API}/datasets/events/seal").json()["sealed"] is None
    target = served.lake.dataset("events")
    with served.lake.ledger.write() as connection:
        for lo in (1, 11, 21):
            rows = SeqRange(Seq(lo), Seq(lo + 9))
            restored_blocks.insert_published(
                connection, target.id, rows, kind=blocks.BlockKind.BATCH, batch_id=f"b{lo}", row_count=10, snapshot=None
            )
    assert admin.get(f"{API}/datasets/events/seal").json()["sealed"] == 30
    first = admin.get(f"{API}/datasets/events/blocks", params={"limit": 2}).json()
    assert [b["lo"] for b in first["blocks"]] == [21, 11] and first["next"] == 11
    last = admin.get(f"{API}/datasets/events/blocks", params={"limit": 2, "before": first["next"]}).json()
    assert [b["lo"] for b in last["blocks"]] == [1] and last["next"] is None


def test_a_sink_is_added_shown_changed_paused_resumed_and_removed(
    admin: httpx.Client, dataset: str, tmp_path: Path
) -> None:
    made = add_sink(admin, tmp_path / "out")
    assert made.status_code == 201 and made.json()["dataset"] == "default.events"
    assert add_sink(admin, tmp_path / "out").status_code == 409
    listed = admin.get(f"{API}/sinks").json()["sinks"]
    assert [(s["name"], s["lanes"][0]["state"]) for s in listed] == [("partner", "active")]
    changed = admin.patch(f"{API}/sinks/partner", json={"options": {"chunk_rows_max": "7"}})
    assert changed.json()["options"]["chunk_rows_max"] == "7"
    assert admin.post(f"{API}/sinks/partner/pause").json()["state"] == "paused"
    assert admin.get(f"{API}/sinks/partner").json()["state"] == "paused"
    assert admin.post(f"{API}/sinks/partner/resume").json()["state"] == "active"
    assert admin.patch(f"{API}/sinks/partner", json={}).status_code == 400
    assert admin.patch(f"{API}/sinks/partner", json={"options": {"nosuch": "1"}}).status_code == 400
    assert admin.delete(f"{API}/sinks/partner").json()["removed"] == "partner"
    assert admin.get(f"{API}/sinks/partner").status_code == 404


def test_a_table_that_cannot_be_opened_is_a_conflict_that_is_described(
    served: Served, admin: httpx.Client, dataset: str
) -> None:
    for file in served.lake.config.home.rglob("*.metadata.json"):
        file.write_text("{}", "utf-8")
    for answer in (
        admin.get(f"{API}/datasets/{dataset}"),
        admin.patch(f"{API}/datasets/{dataset}", json={"drop": ["text"]}),
    ):
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:strandline:problem:table-unfit"), answer.text
    for known in ("blocks", "seal"):
        assert admin.get(f"{API}/datasets/{dataset}/{known}").status_code == 200, "the ledger has them"


def test_a_tick_and_a_reset_are_tasks_to_look_at(admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    for path, body, kind in (
        ("tick", {}, "tick"),
        ("reset", {"to": "beginning"}, "reset"),
        ("recover", {"resend": True}, "recover"),
    ):
        begun = admin.post(f"{API}/sinks/partner/{path}", json=body)
        assert begun.status_code == 202, begun.text
        place = begun.json()["place"]
        assert begun.headers["location"] == place
        eventually(lambda place=place: admin.get(place).json()["outcome"])
        task = admin.get(place).json()
        assert (task["kind"], task["subject"], task["outcome"]) == (kind, "partner", "done"), task
        assert (task["actor"], task["trigger"]) == ("the admin", "api")
    assert [t["kind"] for t in admin.get(f"{API}/tasks").json()["tasks"]] == ["recover", "reset", "tick"]
    assert admin.post(f"{API}/sinks/nosuch/tick", json={}).status_code == 404
    assert admin.post(f"{API}/sinks/partner/recover", json={"resend": True, "accept_loss": True}).status_code == 400
    assert admin.get(f"{API}/tasks/999").status_code == 404


def test_a_site_that_another_one_has_replaced_delivers_nothing_and_says_what_to_do(
    served: Served, admin: httpx.Client, dataset: str, tmp_path: Path
) -> None:
    add_sink(admin, tmp_path / "out")
    served.lake.ledger.change(sites.supersede, term=17, by="https://new")
    for path, body in (("tick", {}), ("reset", {"to": "beginning"}), ("recover", {"resend": True})):
        refused = admin.post(f"{API}/sinks/partner/{path}", json=body)
        assert refused.status_code == 409, refused.text
        assert refused.json()["type"] == "urn:strandline:problem:not-leader"
        assert "https://new leads in term 17" in refused.json()["detail"] and "rejoin" in refused.json()["hint"]
    for more in ({}, {"dry_run": True}):
        refused = admin.patch(f"{API}/datasets/{dataset}", json={"drop": ["text"]} | more)
        assert refused.status_code == 409 and refused.json()["type"] == "urn:strandline:problem:not-leader"
    assert admin.get(f"{API}/tasks").json()["tasks"] == [], "nothing was begun"
    delivery = served.lake.delivery
    asked: tuple[Callable[[], object], ...] = (
        lambda: delivery.tick("partner"),
        lambda: delivery.reset("partner"),
        lambda: delivery.plan_reset("partner"),
        lambda: delivery.recover_sink("partner", resend=True),
        lambda: delivery.update("partner", {"format": "csv"}),
        lambda: delivery.replay("partner"),
    )
    for ask in asked:
        with pytest.raises(NotLeader, match="leads in term 17"):
            ask()
    assert admin.post(f"{API}/sinks/partner/pause").status_code == 200, "that changes nothing for the leader"


def test_rows_and_files_in_quarantine_are_two_things(admin: httpx.Client, dataset: str, tmp_path: Path) -> None:
    add_sink(admin, tmp_path / "out")
    assert admin.get(f"{API}/quarantined-rows").json() == {"rows": [], "next": None, "contents_omitted": 0}
    assert admin.get(f"{API}/quarantined-rows", params={"sink": "nosuch"}).status_code == 404
    assert admin.post(f"{API}/quarantined-rows/discard", json={"sink": "partner"}).status_code == 400
    place = admin.post(f"{API}/quarantined-rows/discard", json={"sink": "partner", "all": True}).json()["place"]
    eventually(lambda: admin.get(place).json()["outcome"])
    gone = {"sink": "partner", "dry_run": False, "discarded": 0, "numbers": []}
    assert admin.get(place).json()["result"] == gone
    assert admin.post(f"{API}/quarantined-rows/discard", json={"sink": "partner", "numbers": [1]}).status_code == 400
    assert admin.post(f"{API}/quarantined-rows/replay", json={"sink": "partner", "all": True}).status_code == 202
    assert admin.get(f"{API}/quarantined-files").json() == {"files": [], "next": None}
    assert admin.post(f"{API}/quarantined-files/restore", json={"run": 7}).status_code == 404


def test_maintenance_of_an_unknown_dataset_is_404_and_a_rule_is_needed(admin: httpx.Client, dataset: str) -> None:
    for kind in ("compact", "retain", "expire"):
        assert admin.post(f"{API}/maintenance/{kind}", json={"dataset": "nosuch"}).status_code == 404
    assert admin.post(f"{API}/maintenance/retain", json={"dataset": "events"}).status_code == 400
    wrong = admin.post(f"{API}/maintenance/retain", json={"dataset": "events", "older_than": "soon"})
    assert wrong.status_code == 422
    assert admin.get(f"{API}/maintenance/runs").json() == {"runs": [], "next": None}
    assert admin.get(f"{API}/maintenance/runs/1").status_code == 404
    assert admin.get(f"{API}/maintenance/runs", params={"dataset": "nosuch"}).status_code == 404


def test_a_token_is_made_listed_used_and_revoked(served: Served, admin: httpx.Client) -> None:
    made = admin.post(f"{API}/tokens", json={"name": "reader", "role": "read", "expires": "30d"})
    assert made.status_code == 201
    secret = made.json()["secret"]
    with served.client(secret) as reader:
        assert reader.get(f"{API}/session").json()["role"] == "read"
        assert reader.get(f"{API}/tokens").status_code == 403
    listed = admin.get(f"{API}/tokens", params={"limit": 1000}).text
    assert '"reader"' in listed and secret not in listed
    for named, role in (({}, "read"), ({"role": "admin"}, "admin")):
        new = admin.post(f"{API}/tokens", json={"name": f"new {role}", "replaces": "reader"} | named)
        assert (new.status_code, new.json()["role"]) == (201, role), "as the old one, unless another is named"
    assert admin.post(f"{API}/tokens", json={"name": "sender"}).json()["role"] == "write"
    assert admin.delete(f"{API}/tokens/reader").json() == {"name": "reader", "revoked": True}
    assert admin.delete(f"{API}/tokens/reader").status_code == 409
    with served.client(secret) as reader:
        assert reader.get(f"{API}/session").status_code == 401


def test_the_audit_log_says_who_did_it_and_is_filtered_and_paged(admin: httpx.Client, dataset: str) -> None:
    events = admin.get(f"{API}/audit", params={"event": "dataset."}).json()["events"]
    assert [(e["event"], e["actor"], e["trigger"]) for e in events] == [("dataset.created", "the admin", "api")]
    assert admin.get(f"{API}/audit", params={"actor": "nobody"}).json() == {"events": [], "next": None}
    assert admin.get(f"{API}/audit", params={"event": "nosuch."}).status_code == 400
    found, before = [], None
    while True:
        page = admin.get(f"{API}/audit", params={"limit": 2} | ({} if before is None else {"before": before})).json()
        found += [e["id"] for e in page["events"]]
        if (before := page["next"]) is None:
            break
    assert found == sorted(found, reverse=True) and len(found) == len(set(found)) >= 5


def test_lists_are_paged_by_name(admin: httpx.Client) -> None:
    for name in ("c", "a", "b"):
        admin.post(f"{API}/datasets", json={"name": name, "columns": COLUMNS})
    first = admin.get(f"{API}/datasets", params={"limit": 2}).json()
    assert [d["name"] for d in first["datasets"]] == ["default.a", "default.b"]
    rest = admin.get(f"{API}/datasets", params={"limit": 2, "after": first["next"]}).json()
    assert [d["name"] for d in rest["datasets"]] == ["default.c"] and rest["next"] is None


@pytest.mark.parametrize("limit", [0, -1, 1001, "many"])
def test_a_page_has_a_bound(admin: httpx.Client, limit: object) -> None:
    assert admin.get(f"{API}/datasets", params={"limit": str(limit)}).status_code == 422


def test_a_limited_token_sees_only_its_datasets(served: Served, admin: httpx.Client, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        admin.post(f"{API}/datasets", json={"name": name, "columns": COLUMNS})
        add_sink(admin, tmp_path / "out", f"to-{name}", name)
    with served.client(served.token("limited", Role.ADMIN, ["mine"])) as limited:
        assert [d["name"] for d in limited.get(f"{API}/datasets").json()["datasets"]] == ["default.mine"]
        assert [s["name"] for s in limited.get(f"{API}/sinks").json()["sinks"]] == ["to-mine"]
        status = limited.get(f"{API}/status").json()
        assert [d["name"] for d in status["datasets"]] == ["default.mine"]
        assert {s["dataset"] for s in status["sinks"]} == {"default.mine"}
        assert [d["dataset"] for d in status["maintenance"]["datasets"]] == ["default.mine"]
        for path in ("datasets/other", "datasets/other/blocks", "datasets/other/seal", "sinks/to-other"):
            assert limited.get(f"{API}/{path}").status_code == 404, path
        assert limited.get(f"{API}/quarantined-rows", params={"sink": "to-other"}).status_code == 404
        assert limited.delete(f"{API}/datasets/other").status_code == 404
        assert limited.post(f"{API}/sinks/to-other/pause").status_code == 404
        assert add_sink(limited, tmp_path / "out", "more", "other").status_code == 403, "files of this machine"
        assert limited.post(f"{API}/maintenance/compact", json={"dataset": "other"}).status_code == 404
        begun = limited.post(f"{API}/sinks/to-mine/tick", json={}).json()["place"]
        assert limited.get(begun).status_code == 200
        others = admin.post(f"{API}/sinks/to-other/tick", json={}).json()["place"]
        assert limited.get(others).status_code == 404
        assert limited.get(f"{API}/reconciliation/status").status_code == 200
        for path in ("audit", "tokens", "reconciliation/runs", "quarantined-files"):
            assert limited.get(f"{API}/{path}").status_code == 403, path


def test_nobody_who_may_not_see_a_dataset_learns_that_it_exists(served: Served, admin: httpx.Client) -> None:
    for name in ("mine", "other"):
        admin.post(f"{API}/datasets", json={"name": name, "columns": COLUMNS})
    with served.client(served.token("limited", Role.READ, ["mine"])) as limited:
        answers = [limited.get(f"{API}/datasets/{name}").json() for name in ("other", "nosuch")]
        assert [a["detail"].replace("other", "nosuch") for a in answers[:1]] == [answers[1]["detail"]]
        assert answers[0]["type"] == answers[1]["type"]


def test_the_server_lives_and_says_what_is_not_ready(served: Served) -> None:
    with served.client() as anyone:
        assert anyone.get("/healthz").json() == {"ok": True}
        ready = anyone.get("/readyz")
        assert ready.status_code == 200 and ready.json()["ready"]
        folder = served.lake.config.warehouse_folder
        assert folder is not None
        witness = next(p for p in folder.rglob("*") if "witness" in p.name and p.is_file())
        witness.write_bytes(b"damaged")
        eventually(lambda: anyone.get("/readyz").status_code == 503)  # an answer is kept for a moment
        not_ready = anyone.get("/readyz")
        assert not_ready.status_code == 503 and not_ready.headers["retry-after"]
        checks = {c["name"]: c for c in not_ready.json()["checks"]}
        assert checks["ledger"]["ready"] and not checks["witness"]["ready"]
        assert str(folder) not in not_ready.text


def catalog_of(ready: httpx.Response) -> tuple[bool, str | None]:
    found = next(check for check in ready.json()["checks"] if check["name"] == "catalog")
    assert found["ready"] or ready.status_code == 503
    return found["ready"], found["reason"]


def test_a_catalog_that_is_gone_is_not_ready_and_is_again_when_it_is_back(
    served: Served, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CATALOG_CHECK_AGE_SECONDS_MAX", 0.1)
    file = served.lake.config.path(served.lake.config.settings.catalog.path)
    with served.client() as anyone:
        assert catalog_of(anyone.get("/readyz")) == (True, None), "a lake without datasets needs none"
        assert admin.post(f"{API}/datasets", json={"name": "events", "columns": COLUMNS}).status_code == 201
        assert catalog_of(anyone.get("/readyz")) == (True, None)
        for damage in (file.unlink, lambda: file.write_bytes(b"this is no database" * 1000)):
            content = file.read_bytes()
            damage()
            eventually(lambda: not catalog_of(anyone.get("/readyz"))[0])
            _, reason = catalog_of(anyone.get("/readyz"))
            assert "the catalog cannot be read" in str(reason) and str(file) not in str(reason)
            file.write_bytes(content)
            eventually(lambda: catalog_of(anyone.get("/readyz"))[0])


def test_a_catalog_that_hangs_is_asked_once_and_keeps_nobody_waiting(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), list[int]()

    def hang() -> None:
        asked.append(1)
        assert answers.wait(60)

    monkeypatch.setattr(served.lake, "check_catalog", hang)
    monkeypatch.setattr(health, "CHECK_SECONDS_MAX", 0.2)
    with served.client() as anyone:
        for _ in range(3):
            is_ready, reason = catalog_of(anyone.get("/readyz"))
            assert not is_ready and "has not answered" in str(reason)
        assert len(asked) == 1
        answers.set()
        eventually(lambda: catalog_of(anyone.get("/readyz"))[0])


def test_whoever_nobody_knows_is_not_told_who_holds_the_witness(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def held() -> None:
        looks.append(1)
        raise LedgerBusy("the witness is locked by secret-host:77")

    monkeypatch.setattr(served.lake.witness, "read", held)
    monkeypatch.setattr(health, "CHECK_AGE_SECONDS_MAX", 60)
    with served.client() as anyone:
        answers = [anyone.get("/readyz") for _ in range(3)]
    assert {a.status_code for a in answers} == {503} and "secret-host" not in answers[0].text
    assert len(looks) == 1, "each look locks the witness"


@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 1}}])
def test_the_description_is_made_once_and_has_every_answer_of_its_own(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[object]()

    def counted(app: FastAPI) -> object:
        made.append(app)
        return describe(app)

    monkeypatch.setattr("strandline.serve.app.describe", counted)
    with served.client() as anyone:
        found = [anyone.get(f"{API}/openapi.json") for _ in range(12)]
    assert {answer.status_code for answer in found} == {200, 429}
    assert all(answer.json() == description() for answer in found if answer.status_code == 200)
    assert len(made) == 1


def test_head_is_answered_like_get_without_a_body(served: Served) -> None:
    with httpx.Client(base_url=served.url, timeout=60) as anyone:
        for path, status in (("/healthz", 200), ("/readyz", 200), (f"{API}/status", 401), ("/login", 200)):
            answer = anyone.head(path)
            assert (answer.status_code, answer.content) == (status, b""), path


def test_short_changes_do_not_wait_for_those_that_wait_for_a_destination(
    served: Served, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.token("gone", Role.READ)
    answered, waiting = threading.Event(), list[str]()

    def get(_: object, name: str) -> None:
        waiting.append(name)
        answered.wait(60)
        raise NoSuchSink(f"there is no sink {name}")

    monkeypatch.setattr(type(served.lake.delivery), "get", get)
    with ThreadPoolExecutor(6) as pool, served.as_role() as other:
        for _ in range(6):
            pool.submit(other.post, f"{API}/sinks/x/pause")
        try:
            eventually(lambda: len(waiting) == served.lake.config.settings.serve.changes_at_once_max)
            assert admin.delete(f"{API}/tokens/gone").status_code == 200
        finally:
            answered.set()


def test_every_answer_has_the_headers_that_protect_a_browser(served: Served, admin: httpx.Client) -> None:
    with served.client() as nobody:
        for answer in (admin.get(f"{API}/status"), nobody.get(f"{API}/status"), nobody.get("/nosuch")):
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "server" not in answer.headers and COOKIE not in answer.headers.get("set-cookie", "")
