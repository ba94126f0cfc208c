"""Schemathesis over the whole description: no server error, and no answer that is not described.

`make torture PYTEST_ARGS=tests/serve/test_campaign.py` sends more than 10,000 cases, and prints how many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

from strandline.core.errors import StorageError
from strandline.core.roles import Role
from tests.browser.shown_lake import fill
from tests.campaign import scaled, seed
from tests.serve.conftest import API, COLUMNS, Served

# Every operation gets its share of them.
CASES = scaled(200, 12_500)  # some operations have no more than a few: at least 10,000 are sent
WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
NEGATIVE = schemathesis.GenerationMode.NEGATIVE
DATASETS = ["default.orders", "payments", "default.spare"]
SINKS = ["warehouse", "partner", "ledger-export", "s"]
NUMBERS = [1, 2, 3]  # of runs, tasks and rows
OPTIONS = [
    ("where", "id > 1"),
    ("columns", "id"),
    ("batch_rows_min", "10"),
    ("batch_wait_seconds_max", "100000000000000"),
    ("chunk_rows_max", "²"),
    ("format", "jsonl"),
    ("compression", "gz"),
]
TYPES = ["long", "decimal(10,2)", "list<string>", "fixed[99999999999999999999]", {"type": "list", "element": "int"}]

Headers = dict[str, str]


@pytest.mark.timeout(scaled(900, 4 * 3600))
@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 100_000, "logins_per_minute_max": 10_000}}])
def test_no_generated_request_finds_a_server_error_or_an_undescribed_answer(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    for place in ("strandline.iceberg.session.lake_session", "strandline.reconcile.on_spark.survey"):
        monkeypatch.setattr(f"{place}.open_session", _no_jvm)
    # Lists with something in them, and numbers of runs, tasks and rows that exist.
    fill(served.lake, tmp_path / "shown")
    with served.as_role() as admin:
        admin.post(f"{API}/datasets", json={"name": "spare", "columns": COLUMNS})
        options = {"path": str(tmp_path / "out")}
        admin.post(f"{API}/sinks", json={"name": "s", "dataset": "spare", "kind": "files", "options": options})
        admin.post(f"{API}/replication/followers", json={"name": "site"})
        for name in ("first", "second"):
            admin.post(f"{API}/tokens", json={"name": name, "role": "read"})
    callers = _callers(served)
    schema = schemathesis.openapi.from_url(f"{served.url}{API}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    operations.sort(key=lambda operation: operation.method.upper() == "DELETE")  # what is there goes last
    checks = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    assert len(checks) == len(WANTED) and len(operations) > 40
    sent, named = Counter[str](), Counter[int]()

    chosen = seed(16)

    def campaign(operation: Any, number: int) -> None:
        @with_seed(chosen + number)
        @settings(
            max_examples=-(-CASES // len(operations)),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=st.one_of(operation.as_strategy(), operation.as_strategy(generation_mode=NEGATIVE)),
            caller=st.sampled_from(sorted(callers)),
            known=st.none() | st.fixed_dictionaries(_known(tmp_path)),
        )
        def run(case: Any, caller: str, known: Mapping[str, Any] | None) -> None:
            sent[caller] += 1
            if known is not None:
                _name(case, known)
            answer = case.call_and_validate(headers=callers[caller], checks=checks, timeout=60)
            if known is not None:
                named[answer.status_code] += 1

        run()

    for number, operation in enumerate(operations):
        campaign(operation, number)
    assert sent.total() >= CASES * 0.8 and min(sent[name] for name in callers) > 0
    assert named[200] + named[201] + named[202] >= named.total() * 0.05, "some of them find what they name"
    # Into the report of the test run, beside its date, and to whoever watches it.
    found = {"cases": sent.total(), "seed": chosen, "named": dict(sorted(named.items())), "callers": dict(sent)}
    for name, value in found.items():
        record_property(name, str(value))
    print(f"generated requests: {found}")


def _no_jvm(*_: object, **__: object) -> NoReturn:
    raise StorageError("there is no Spark here")


def _callers(served: Served) -> dict[str, Headers]:
    """The headers of each: every role, a token that is limited, a browser that has logged in, and nobody."""
    secrets = {str(role): secret for role, secret in served.secrets.items()}
    secrets["limited"] = served.token("limited", Role.ADMIN, only=["default.orders"])
    secrets["another admin"] = secrets["admin"]  # most operations are theirs
    found = {name: {"Authorization": f"Bearer {secret}"} for name, secret in secrets.items()}
    with httpx.Client(base_url=served.url) as browser:
        made = browser.post(f"{API}/session", json={"token": served.token("browser", Role.ADMIN)})
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    found["browser"] = {"Cookie": cookie, "X-CSRF-Token": made.json()["csrf"], "Sec-Fetch-Site": "same-origin"}
    found["nobody"] = {}
    return found


def _known(folder: Path) -> dict[str, st.SearchStrategy[Any]]:
    """What a request may name that is there, by the name of its parameter or field."""
    place = st.integers(1, 50).map(lambda n: {"path": str(folder / f"made-{n}")})
    more = st.just({}) | st.sampled_from(OPTIONS).map(lambda option: {option[0]: option[1]})
    return {
        "dataset": st.sampled_from(DATASETS),
        "sink": st.sampled_from(SINKS),
        "follower": st.just("site"),
        "token": st.sampled_from(["first", "second"]),
        "number": st.sampled_from(NUMBERS),
        "name": st.integers(1, 200).map("new-{}".format),  # of what is made
        "kind": st.just("files"),
        "options": st.tuples(place | st.just({}), more).map(lambda parts: parts[0] | parts[1]),
        "type": st.sampled_from(TYPES),
    }


def _name(case: Any, known: Mapping[str, Any]) -> None:
    """Puts the known names in place of what was generated, in the path, the query and the body; and a possible name
    for what is made."""
    whose = next((n for n in ("dataset", "sink", "follower", "token") if f"/{n}s/" in case.path), None)
    for values in (case.path_parameters, case.query):
        if isinstance(values, dict):
            values.update({key: known[key] for key in values if key in ("dataset", "sink", "follower")})
            values.update({key: known["number"] for key in values if key in ("run", "task")})
            if whose is not None and "name" in values:
                values["name"] = known[whose]
    _name_within(case.body, known)


def _name_within(body: Any, known: Mapping[str, Any]) -> None:
    if isinstance(body, list):
        for one in body:
            _name_within(one, known)
    if not isinstance(body, dict):
        return
    is_new = not body.keys().isdisjoint(("kind", "columns", "role", "on_lag"))
    for key in body:
        if key in ("dataset", "sink", "kind", "type") or (key == "name" and is_new):
            body[key] = known[key]
        elif key == "options":
            body[key] = dict(known["options"])
        elif key in ("run", "task"):
            body[key] = known["number"]
        elif key == "numbers":
            body[key] = [known["number"]]
        elif key == "datasets" and body[key]:
            body[key] = [known["dataset"]]
        elif key in ("add", "widen"):
            _name_within(body[key], known)
        elif key == "columns":
            _name_columns(body[key], known)


def _name_columns(columns: Any, known: Mapping[str, Any]) -> None:
    if isinstance(columns, list):
        for n, column in enumerate(columns):
            if isinstance(column, dict) and "type" in column:
                column |= {"name": f"c{n}", "type": known["type"]}
