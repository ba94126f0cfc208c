"""Repeats a commit through PyIceberg that lost against another one, or whose outcome is unknown. Importing this imports
PyIceberg."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from strandline.core.errors import CommitUnknown
from strandline.core.text.wording import plural
from strandline.iceberg.commit_retry import COMMIT_RETRY
from strandline.iceberg.pyiceberg.errors import explained

T = TypeVar("T")


def repeat_commit(name: str, attempt: Callable[[], T], what: str = "the change could not be committed") -> T:
    """Calls `attempt` until it succeeds. Each attempt must begin by loading the table: then it sees what an attempt
    with an unknown outcome has committed, and does not commit it again. Raises CommitUnknown."""
    for now in COMMIT_RETRY.attempts():
        try:
            with explained(name):
                return attempt()
        except (CommitFailedException, CommitStateUnknownException) as e:
            if now.is_last:
                raise CommitUnknown(
                    f"{name}: {what} in {plural(now.number, 'attempt')}: {e}",
                    hint="Other writers keep committing to the table, or the catalog does not answer. Try again.",
                ) from e
    raise AssertionError("unreachable")
