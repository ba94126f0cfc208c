"""Asks a receiver who claimed it, which ranges it holds, and what is in them. Other peers cannot be asked.

A question can be repeated without harm, so one whose response was lost is asked once more.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from strandline.core import forward_protocol
from strandline.core.errors import StorageError
from strandline.core.retry import RetryPolicy
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.types import SEQ_MAX, Seq, SeqRange
from strandline.deliver.sink import Address, Claim, Claimed, Held, HeldRange, Inspected
from strandline.deliver.sinks.forward.address import AddressRefused
from strandline.deliver.sinks.forward.http import AnswerLate, AnswerLost, BearerToken, Conversation, HttpAnswer, NotSent
from strandline.deliver.sinks.forward.outcome import NOT_THE_RECEIVER, explain

WINDOW_RANGES_MIN = 64
WINDOW_RANGES_MAX = 1024  # in lengths of the range that was asked for; a receiver returns at most a thousand at once
LANES_AT_ONCE_MAX = 1000  # in one request
RECORD_BYTES_MAX = 256 << 20  # of a response to a question: some two million ranges
_LOST = RetryPolicy(0.0, attempts_max=2)
_GENERATION_STEPS_MAX = 1000  # more resets than this, unseen by the receiver, are not plausible
# A gateway in front of a receiver may answer so, and the missing header proves nothing.
_CANNOT_SAY = (401, 407, 408, 425, 429)


class Peer:
    def __init__(self, conversation: Conversation, *, was_receiver: bool = False, may_be_other: bool = False) -> None:
        """`was_receiver`: when it was claimed. `may_be_other`: the options say what responses of another peer mean."""
        self._conversation = conversation
        self._was_receiver = was_receiver
        self._may_be_other = may_be_other
        self._is_receiver: bool | None = None

    def __repr__(self) -> str:
        return f"Peer({self._conversation.place.destination})"

    def close(self) -> None:
        self._conversation.close()

    @property
    def token(self) -> BearerToken:
        return self._conversation.token

    @property
    def is_receiver(self) -> bool:
        """Asks with a request that changes nothing at any server. Raises StorageError if a missing header proves
        nothing: a proxy in front of a receiver answers without it, too."""
        if self._is_receiver is None:
            answer = self._request("HEAD", "", {})
            if answer.from_receiver:
                self._check_version(answer)
            elif answer.status >= 500 or 300 <= answer.status < 400 or answer.status in _CANNOT_SAY:
                raise self._error(explain(answer))
            elif self._was_receiver:
                raise self._error(
                    f"{explain(answer)} ({NOT_THE_RECEIVER}); it was a Strandline receiver when the sink was added",
                    hint="Nothing is sent until the receiver answers again. If another server has taken its place for "
                    "good, remove the sink and add it again.",
                )
            elif not self._may_be_other:
                raise self._error(
                    f"{explain(answer)}: no Strandline receiver answers there",
                    hint="Check the URL, and any proxy in front of the receiver. For a server of another kind, "
                    "say which of its answers mean that it has stored the rows: --option success_status=2xx, and "
                    "better success_header or success_json, too.",
                )
            self._is_receiver = answer.from_receiver
        return self._is_receiver

    def claimed(self, lake: str, dataset: str) -> Claimed | None:
        return self._claimed(self._ask("claimed", {"lake": lake, "dataset": dataset}))

    def claim(self, claim: Claim, generation: int) -> Claimed:
        """A receiver takes generations one step at a time. If it has not seen those before this one, they are claimed
        one by one: the sink was reset twice, or the receiver's ledger is new."""
        found = self._claim(claim, generation)
        if isinstance(found, Claimed):
            return found
        if generation - found > _GENERATION_STEPS_MAX:
            raise self._error(f"it has seen generation {found} of the sink, and this is {generation}")
        for step in range(found + 1, generation + 1):
            found = self._claim(claim, step)
        if not isinstance(found, Claimed):
            raise self._error(f"it does not take generation {generation} of the sink after generation {found}")
        return found

    def _claim(self, claim: Claim, generation: int) -> Claimed | int:
        """Returns the last generation that the receiver has seen (0: none) if this one is more than a step beyond."""
        answer = self._request("POST", "claim", asdict(claim) | {"generation": generation})
        if answer.from_receiver and answer.fields.get("outcome") == forward_protocol.Answer.NOT_CLAIMED:
            return int(answer.fields.get("generation") or 0)
        found = self._claimed(self._fields_of(answer))
        if found is None:
            raise self._error("it did not record the sink's claim")
        return found

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        held: list[Held] = []
        for _, alike in itertools.groupby(lanes, lambda one: _whose(one[0])):
            asked = list(alike)
            for at in range(0, len(asked), LANES_AT_ONCE_MAX):
                held += self._held(asked[at : at + LANES_AT_ONCE_MAX])
        return held

    def _held(self, asked: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        """A receiver returns a limited number of ranges; for a lane that has more, it is asked again."""
        found: list[list[HeldRange]] = [[] for _ in asked]
        left = list(range(len(asked)))
        while left:
            at = [(asked[n][0], found[n][-1].rows.hi if found[n] else asked[n][1]) for n in left]
            answers = self._held_part(at)
            for n, (ranges, _) in zip(left, answers, strict=True):
                found[n] += ranges
            more = [n for n, (_, more) in zip(left, answers, strict=True) if more]
            if more and not any(ranges for ranges, _ in answers):
                raise self._error("it says that it has more ranges than it returned, and returned none")
            left = more
        for ranges in found:
            if any(a.rows.hi >= b.rows.lo for a, b in itertools.pairwise(ranges)):
                raise self._error("the ranges that it returned are not in order, or overlap")
        return [Held(None, tuple(ranges)) for ranges in found]

    def _held_part(self, asked: Sequence[tuple[Address, Seq | None]]) -> list[tuple[list[HeldRange], bool]]:
        lanes = [{"partition": address.partition, "after": after} for address, after in asked]
        answer = self._ask("held", _whose(asked[0][0]) | {"lanes": lanes})
        try:
            found = [
                ([HeldRange.of(*one) for one in lane["ranges"]], bool(lane.get("more", False)))
                for lane in answer["lanes"]
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise self._unreadable("held") from e
        if len(found) != len(asked):
            raise self._unreadable("held")
        return found

    def inspect(self, address: Address, window: SeqRange) -> tuple[dict[SeqRange, Inspected], Seq | None]:
        """What the receiver really holds of the ranges inside the window, and where to continue if there are more."""
        question = _whose(address) | {"partition": address.partition, "lo": window.lo, "hi": window.hi}
        answer = self._ask("inspect", question)
        try:
            found = {
                SeqRange(Seq(r["lo"]), Seq(r["hi"])): Inspected(r["rows"], r["digest"], r["problem"])
                for r in answer["ranges"]
            }
            following = answer.get("next")
            return found, None if following is None else Seq(int(following))
        except (KeyError, TypeError, ValueError) as e:
            raise self._unreadable("inspect") from e

    def _ask(self, what: str, question: Mapping[str, object]) -> dict[str, Any]:
        return self._fields_of(self._request("POST", what, question))

    def _fields_of(self, answer: HttpAnswer) -> dict[str, Any]:
        if not answer.from_receiver or not 200 <= answer.status < 300:
            raise self._error(explain(answer))
        self._check_version(answer)
        if len(answer.content) > RECORD_BYTES_MAX:
            raise self._error(f"its answer is longer than {RECORD_BYTES_MAX >> 20} MiB")
        return answer.fields

    def _request(self, method: str, under: str, question: Mapping[str, object]) -> HttpAnswer:
        content = json.dumps(question, separators=(",", ":")).encode() if method == "POST" else b""
        headers = {"Content-Type": "application/json"} if content else {}
        try:
            return _LOST.call(
                lambda: self._conversation.request(
                    method, under, headers=headers, content=content, bytes_max=RECORD_BYTES_MAX
                ),
                AnswerLost,
            )
        except AddressRefused:
            raise
        except (NotSent, AnswerLate, AnswerLost) as e:
            raise self._error(str(e)) from None

    def _check_version(self, answer: HttpAnswer) -> None:
        version = answer.headers[forward_protocol.RECEIVER.lower()]
        if version != forward_protocol.VERSION:
            raise self._error(
                f"it is a receiver that speaks version {version[:20]!r}, and this program speaks "
                f"{forward_protocol.VERSION}",
                hint="Bring both ends to the same version.",
            )

    def _claimed(self, answer: Mapping[str, Any]) -> Claimed | None:
        try:
            claim, generation = answer["claim"], answer["generation"]
            if claim is None:
                return None
            lake, instance, dataset, uuid = (str(claim[n]) for n in ("lake", "instance", "dataset", "table_uuid"))
            return Claimed(Claim(lake, instance, dataset, uuid, int(claim.get("term", FIRST_TERM))), int(generation))
        except (KeyError, TypeError, ValueError) as e:
            raise self._unreadable("claim") from e

    def _unreadable(self, what: str) -> StorageError:
        return self._error(f"its answer to `{what}` cannot be read")

    def _error(self, why: str, hint: str | None = None) -> StorageError:
        conversation = self._conversation
        return StorageError(conversation.scrub(f"{conversation.place.destination}: {why}"), hint=hint)


class ForwardInspector:
    """Reads ranges back, many with one request: each of them may count rows in a table there. Called range by range, it
    requests a window of ranges, twice as many each time: so little is read in vain for a task with few ranges, and few
    requests are made for one with many."""

    asks_only = True

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._ranges = WINDOW_RANGES_MIN
        self._address: Address | None = None
        self._window: SeqRange | None = None
        self._known: dict[SeqRange, Inspected] = {}

    def __repr__(self) -> str:
        return f"ForwardInspector({self._peer!r})"

    def close(self) -> None:
        self._peer.close()

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        if not self._peer.is_receiver:
            return Inspected(None, None)
        window = self._window
        if self._address != address or window is None or not (window.lo <= rows.lo and rows.hi <= window.hi):
            self._read_window(address, rows)
        return self._known.get(rows) or Inspected(None, None, f"the receiver does not know of {rows}")

    def _read_window(self, address: Address, rows: SeqRange) -> None:
        hi = min(rows.lo + len(rows) * self._ranges - 1, SEQ_MAX)
        self._known, following = self._peer.inspect(address, SeqRange(rows.lo, Seq(hi)))
        if following is not None:
            hi = max(following - 1, rows.hi)
        self._address, self._window = address, SeqRange(rows.lo, Seq(hi))
        self._ranges = min(self._ranges * 2, WINDOW_RANGES_MAX)


def _whose(address: Address) -> dict[str, object]:
    return {name: value for name, value in asdict(address).items() if name != "partition"}
