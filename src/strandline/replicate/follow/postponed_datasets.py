"""The datasets that failed as a whole: this site could not create them, or refused what the leader offers of them.

An answer of the leader has room for a limited number of datasets. So if it left some out, the next polls do not ask for
those that failed here, until a later attempt is due. Otherwise a few that fail again and again would take every place.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.core.errors import StrandlineError
from strandline.core.types import DatasetUuid, Seq
from strandline.ingest.dataset_backoff import DatasetBackoff
from strandline.replicate.source import LeaderAnswer

WAIT_POLLS = 100  # before the next attempt: meanwhile that many answers have room for others


class PostponedDatasets:
    def __init__(self, poll_seconds: float) -> None:
        self._backoff: DatasetBackoff[DatasetUuid] = DatasetBackoff(wait_seconds_min=WAIT_POLLS * poll_seconds)
        self._errors: dict[DatasetUuid, StrandlineError] = {}
        self._is_short_of_places = False

    def list_errors(self) -> Mapping[DatasetUuid, StrandlineError]:
        """The datasets that the next poll does not ask for, and why each of them failed."""
        if not self._is_short_of_places:
            return {}
        waiting = self._backoff.waiting()
        return {id: error for id, error in self._errors.items() if id in waiting}

    def answered(self, answer: LeaderAnswer, after: Mapping[DatasetUuid, Seq]) -> None:
        """Notes whether the leader's answer to a poll with these bounds has left datasets out."""
        self._is_short_of_places = leaves_datasets_out(answer, after)

    def failed(self, id: DatasetUuid, error: StrandlineError, started_at: float) -> None:
        self._errors[id] = error
        self._backoff.failed(id, started_at)

    def succeeded(self, id: DatasetUuid) -> None:
        self._errors.pop(id, None)
        self._backoff.succeeded(id)

    def now(self) -> float:
        return self._backoff.now()


def leaves_datasets_out(answer: LeaderAnswer, after: Mapping[DatasetUuid, Seq]) -> bool:
    """Whether the leader has more datasets with something new than its answer names. Pure."""
    offered = {o.dataset.id for o in answer.offers}
    made = {terms.id for terms in answer.made}
    seals = {id: seal or 0 for id, seal in answer.seals.items() if id in after}
    lacks_items = any(seal > after[id] and id not in offered for id, seal in seals.items())
    return lacks_items or any(id not in after and id not in made for id in answer.datasets)
