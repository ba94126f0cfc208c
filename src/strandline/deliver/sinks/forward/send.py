"""Sends one chunk with one request; a retry has the same id and the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from strandline.core import failpoints, forward_protocol
from strandline.core.forward_protocol import RangeIdentity
from strandline.core.retry import RetryPolicy
from strandline.deliver.sink import ChunkRows, Outcome, Refused, TryLater, Unknown
from strandline.deliver.sinks.forward.address import AddressRefused
from strandline.deliver.sinks.forward.body import BodyFormat, encode_body
from strandline.deliver.sinks.forward.http import AnswerLate, AnswerLost, Conversation, NotSent
from strandline.deliver.sinks.forward.outcome import Success, after_uncertainty, outcome_of, with_why

# One, and a second one if the response was lost. No pause between or after them: the ledger stores how long a sink
# waits, so a deliverer that shall stop has nothing to wake up.
ATTEMPTS_MAX = 2


@dataclass
class ForwardSender:
    at_once = 2  # bodies are small, and a response takes as long as a disk at the other end

    _conversation: Conversation
    _how: BodyFormat
    _success: Success | None
    _term: int
    _wait_seconds_max: float

    def close(self) -> None:
        self._conversation.close()

    def send(self, chunk: ChunkRows) -> Outcome:
        body = encode_body(chunk, self._how)
        headers = {
            **self._how.headers,
            forward_protocol.DIGEST: forward_protocol.content_digest(body.content),
            **forward_protocol.identity_headers(RangeIdentity(chunk.address, chunk.range, self._term)),
        }
        lost: str | None = None
        for _ in RetryPolicy(0.0, attempts_max=ATTEMPTS_MAX).attempts():
            failpoints.hit("forward.before_post")
            try:
                answer = self._conversation.request("POST", headers=headers, content=body.content)
            except AddressRefused as e:
                return self._named(TryLater(f"{e.message} ({e.hint})"))
            except NotSent as e:
                return self._named(TryLater(str(e)) if lost is None else Unknown(f"{lost}; then: {e}"))
            except AnswerLate as e:
                return self._named(Unknown(str(e) if lost is None else f"{lost}; then: {e}"))
            except AnswerLost as e:
                lost = str(e)
                continue
            failpoints.hit("forward.after_post")
            now, wait_seconds_max = datetime.now(UTC), self._wait_seconds_max
            outcome = outcome_of(answer, chunk.range, body, self._success, wait_seconds_max=wait_seconds_max, now=now)
            return self._named(outcome if lost is None else after_uncertainty(outcome, answer, lost))
        return self._named(Unknown(lost or "no answer"))

    def _named(self, outcome: Outcome) -> Outcome:
        """Adds the destination, and removes the token, in case a server repeats it."""
        if not isinstance(outcome, Refused | TryLater | Unknown):
            return outcome
        where = self._conversation.place.destination
        return with_why(outcome, self._conversation.scrub(f"{where}: {outcome.why}"))
