"""What the reconciler says to people."""

from __future__ import annotations

from strandline.cli.render import reconcile
from strandline.reconcile.model import Protection


def test_every_reason_that_protects_a_file_has_words_and_no_words_are_left_over() -> None:
    assert set(reconcile._PROTECTED) == {reason.value for reason in Protection}
