"""What the reconciler says to people."""

from __future__ import annotations

import pytest

from strandline.cli.render import reconcile
from strandline.reconcile.model import Protection


@pytest.mark.parametrize(
    ("reason", "words"),
    [("layout", Protection.LAYOUT.words), ("a reason of another version", "a reason of another version")],
)
def test_a_reason_is_shown_in_words_and_one_that_is_not_known_as_it_is(reason: str, words: str) -> None:
    assert reconcile._protection(reason) == words
