"""A network cut of a campaign counts only if a request was cut and the follower noticed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests import loopback
from tests.spark.network_cut import ASKED_FOR, HOW, asked_for, cut_once_each, is_replication
from tests.spark.relay import Relay, Request, relaying

WAIT_SECONDS_MAX = 60
PATHS = {
    "offer": "offer",
    "schema": "segment?lo=1&hi=9&behind=9",
    "rows": "segment?lo=1&hi=9&behind=0",
    "acknowledge": "acknowledge",
}


@pytest.fixture
def relay() -> Iterator[Relay]:
    class Handler(loopback.Handler):
        def do_POST(self) -> None:
            self.answer(200, b"an answer")

    with loopback.serving(Handler) as port, relaying(port) as relay:
        yield relay


def asks(relay: Relay, *for_what: str) -> bool:
    """One pass of a follower, which ends where something goes wrong."""
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{relay.port}/api/v1/replication/") as client:
            return all(client.post(PATHS[what]).is_success for what in for_what)
    except httpx.TransportError:
        return False


def test_what_a_follower_asks_for_is_known_by_its_path() -> None:
    requests = [Request("POST", f"/api/v1/replication/{path}", {}, b"") for path in PATHS.values()]
    assert [asked_for(request) for request in requests] == list(PATHS) == list(ASKED_FOR)
    assert all(is_replication(request) for request in requests)
    assert not is_replication(Request("POST", "/v1/datasets/events/rows", {}, b""))


@pytest.mark.parametrize("how", HOW)
def test_each_request_is_cut_once_and_then_passes(relay: Relay, how: str) -> None:
    fates = dict.fromkeys(ASKED_FOR, HOW[how])
    before = relay.rule, relay.concerns
    assert cut_once_each(relay, fates, lambda: asks(relay, *ASKED_FOR), seconds_max=WAIT_SECONDS_MAX) == len(fates)
    assert asks(relay, *ASKED_FOR)
    assert (relay.rule, relay.concerns) == before


def test_a_cut_that_no_request_met_is_an_error(relay: Relay) -> None:
    with pytest.raises(AssertionError, match="nothing was cut"):
        cut_once_each(
            relay, {"offer": HOW["refused on the way"]}, lambda: asks(relay, "offer"),
            seconds_max=WAIT_SECONDS_MAX, concerns=lambda request: False,
        )  # fmt: skip
    with pytest.raises(AssertionError, match="nothing was cut"):
        fates = dict.fromkeys(("offer", "rows"), HOW["refused on the way"])
        cut_once_each(relay, fates, lambda: asks(relay, "offer"), seconds_max=WAIT_SECONDS_MAX)


def test_a_cut_that_the_follower_has_not_noticed_is_an_error(relay: Relay) -> None:
    def is_deaf() -> bool:
        asks(relay, "offer")
        return True

    with pytest.raises(AssertionError, match="has not noticed"):
        cut_once_each(relay, {"offer": HOW["refused on the way"]}, is_deaf, seconds_max=WAIT_SECONDS_MAX)
