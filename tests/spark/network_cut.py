"""A network between a follower and its leader that cuts requests off, and the proof that it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from tests.spark.relay import Afterwards, CutShort, Fate, Instead, Relay, Request

ASKED_FOR = ("offer", "schema", "rows", "acknowledge")
HOW: Mapping[str, Fate] = {
    "refused on the way": Instead(502),
    "left without an answer": Afterwards(None),
    "cut within its answer": CutShort(),
}
PASSES_IDLE_MAX = 3


def is_replication(request: Request) -> bool:
    return "/replication/" in request.path


def asked_for(request: Request) -> str:
    """What a follower asks its leader for: one of `ASKED_FOR`, or the last part of another path."""
    address = urlsplit(request.path)
    what = address.path.rpartition("/")[2]
    if what != "segment":
        return what
    query = parse_qs(address.query)
    return "schema" if query["behind"] == query["hi"] else "rows"


@contextmanager
def ruled(
    relay: Relay, rule: Callable[[Request], Fate], concerns: Callable[[Request], bool] = is_replication
) -> Iterator[None]:
    """The relay has this rule, for the requests of followers unless `concerns` says otherwise."""
    before = relay.rule, relay.concerns
    relay.rule, relay.concerns = rule, concerns
    try:
        yield
    finally:
        relay.rule, relay.concerns = before


def cut_once_each(
    relay: Relay,
    fates: Mapping[str, Fate],
    one_pass: Callable[[], bool],
    *,
    seconds_max: float,
    concerns: Callable[[Request], bool] = is_replication,
) -> int:
    """Cuts the first request for each of `fates` while `one_pass` is repeated, which says whether it went well. Returns
    how many passes failed. Fails if a request was not cut, although nothing is left to ask for, and if the follower did
    not notice."""
    left, failed, idle = dict(fates), 0, 0
    deadline = time.monotonic() + seconds_max

    def rule(request: Request) -> Fate:
        return left.pop(asked_for(request), None)

    with ruled(relay, rule, concerns):
        while left:
            assert idle < PASSES_IDLE_MAX, f"nothing was cut of what the follower asks for: {sorted(left)}"
            assert time.monotonic() < deadline, f"the follower did not ask in time for: {sorted(left)}"
            if one_pass():
                idle += 1
            else:
                failed += 1
    assert failed, "the follower has not noticed that its requests were cut"
    return failed
