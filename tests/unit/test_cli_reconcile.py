"""What the reconciler says to people."""

from __future__ import annotations

from typing import Any

from strandline.cli.render import reconcile
from strandline.reconcile.model import Protection


def test_a_reason_is_shown_in_words_and_one_of_another_version_as_it_is() -> None:
    table: Any = reconcile._protected({Protection.LAYOUT.value: 1, "of another version": 2})[1]
    assert [cell.plain for cell in table.columns[1].cells] == ["outside every table's layout", "of another version"]
