"""Callers whom the ledger has verified a moment ago."""

from __future__ import annotations

import asyncio

import pytest

from strandline.http import verified_callers
from strandline.http.verified_callers import VERIFIED_SECONDS, VerifiedCallers, bearer_secret


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [100.0]
    monkeypatch.setattr(verified_callers, "monotonic", lambda: moment[0])
    return moment


def test_a_caller_is_known_for_a_moment_from_when_the_ledger_was_asked(now: list[float]) -> None:
    callers = VerifiedCallers[str]()
    callers.keep("secret", "ada", asked_at=now[0] - VERIFIED_SECONDS / 2)
    assert callers.find("secret") == "ada" and callers.find("other") is None
    now[0] += VERIFIED_SECONDS / 2 + 0.001
    assert callers.find("secret") is None


def test_an_answer_that_was_asked_for_before_a_change_is_not_kept(now: list[float]) -> None:
    callers = VerifiedCallers[str]()
    callers.clear()
    callers.keep("secret", "ada", asked_at=now[0])
    assert callers.find("secret") is None
    now[0] += 0.001
    callers.keep("secret", "ada", asked_at=now[0])
    assert callers.find("secret") == "ada"


def test_however_many_wait_the_ledger_is_asked_once_and_again_after_a_change(now: list[float]) -> None:
    async def scenario() -> None:
        callers = VerifiedCallers[str]()
        asked = 0
        answer = asyncio.Event()

        async def ask() -> str:
            nonlocal asked
            asked += 1
            await answer.wait()
            return f"answer {asked}"

        waiting = [asyncio.create_task(callers.find_or_ask("secret", ask)) for _ in range(50)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked == 1
        callers.clear()
        late = asyncio.create_task(callers.find_or_ask("secret", ask))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked == 2, "what was asked before the change does not count"
        answer.set()
        assert await late is not None and len(set(await asyncio.gather(*waiting))) == 1

    asyncio.run(scenario())


def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    async def scenario() -> None:
        callers = VerifiedCallers[str]()

        async def fail() -> str:
            raise OSError("away")

        async def ask() -> str:
            return "ada"

        found = await asyncio.gather(*(callers.find_or_ask("s", fail) for _ in range(3)), return_exceptions=True)
        assert [type(e) for e in found] == [OSError] * 3
        assert await callers.find_or_ask("s", ask) == "ada"

    asyncio.run(scenario())


def test_the_number_of_callers_is_bounded(now: list[float]) -> None:
    callers = VerifiedCallers[int]()
    for n in range(2000):
        callers.keep(n, n, asked_at=now[0])
    assert sum(callers.find(n) is not None for n in range(2000)) == 1024


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (None, None),
        ("", None),
        ("Bearer", None),
        ("Basic abc", None),
        ("Bearer abc", "abc"),
        ("bearer   abc ", "abc"),
        ("Bearer " + "x" * 1025, None),
    ],
)
def test_the_secret_of_a_header(header: str | None, secret: str | None) -> None:
    assert bearer_secret(header) == secret
