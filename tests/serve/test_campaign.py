"""Schemathesis over the whole description: no server error, and no answer that is not described.

`make torture PYTEST_ARGS=tests/serve/test_campaign.py` sends more than 10,000 cases.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

from strandline.core.roles import Role
from tests.browser.shown_lake import fill
from tests.campaign import scaled, seed
from tests.serve.conftest import API, COLUMNS, Served

# Every operation gets its share of them.
CASES = scaled(200, 12_500)  # some operations have no more than a few: at least 10,000 are sent
NAME = "events_that_no_case_names_by_chance"  # maintenance of it would start a JVM
WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.mark.timeout(scaled(900, 4 * 3600))
@pytest.mark.parametrize("settings", [{"serve": {"requests_per_second_max": 100_000, "logins_per_minute_max": 10_000}}])
def test_no_generated_request_finds_a_server_error_or_an_undescribed_answer(
    served: Served, tmp_path: Any, record_property: Any
) -> None:
    fill(
        served.lake, tmp_path / "shown"
    )  # lists with something in them, and numbers of runs, tasks and rows that exist
    admins, limited = served.secrets[Role.ADMIN], served.token("limited", Role.ADMIN, only=["default.orders"])
    secrets = [admins, admins, limited, served.secrets[Role.READ]]
    with served.as_role() as admin:
        admin.post(f"{API}/datasets", json={"name": NAME, "columns": COLUMNS})
        options = {"path": str(tmp_path / "out")}
        admin.post(f"{API}/sinks", json={"name": "s", "dataset": NAME, "kind": "files", "options": options})
    schema = schemathesis.openapi.from_url(f"{served.url}{API}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    checks = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    assert len(checks) == len(WANTED) and len(operations) > 40
    sent = 0

    def campaign(operation: Any, cases: int) -> None:
        @with_seed(seed(16))
        @settings(
            max_examples=cases,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=st.one_of(operation.as_strategy(), operation.as_strategy(generation_mode=NEGATIVE)),
            secret=st.sampled_from(secrets),
        )
        def run(case: Any, secret: str) -> None:
            nonlocal sent
            sent += 1
            case.call_and_validate(headers={"Authorization": f"Bearer {secret}"}, checks=checks, timeout=60)

        run()

    for operation in operations:
        campaign(operation, -(-CASES // len(operations)))
    assert sent >= CASES * 0.8
    record_property("cases", sent)  # into the report of the test run, beside its date
    record_property("seed", seed(16))


NEGATIVE = schemathesis.GenerationMode.NEGATIVE
