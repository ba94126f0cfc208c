"""Renders the result of a rejoin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.render.elements import dim, done
from strandline.core.text.wording import plural

if TYPE_CHECKING:
    from strandline.replicate.take_over.rejoin import Rejoined


def lines(found: Rejoined) -> Iterator[RenderableType]:
    yield done(f"This site follows {found.leader}, which leads in term {found.term}")
    if found.led is not None:
        yield Text(f"  It led in term {found.led.term}.")
        if found.led.open_blocks:
            yield Text(f"  {plural(found.led.open_blocks, 'open block')} will be abandoned by the first follow pass.")
        for name in found.led.not_at_the_leader:
            yield Text(f"  {name} does not exist at the leader. It stays here and is not replicated.", "yellow")
    for one in found.bodies:
        rows = "" if one.rows is None else f" with {plural(one.rows, 'row')}"
        bodies = plural(one.bodies, "acknowledged body")
        yield Text(f"  {one.dataset}: {bodies}{rows}, never ingested, copied to {one.place}")
    yield dim("  Next: strandline follow")
