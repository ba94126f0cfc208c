"""Names of the branches on which blocks are staged: `sl_<lo>`, and at a follower `sl_<lo>_<fence>`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.core.types import BRANCH_PREFIX

_NAME = re.compile(re.escape(BRANCH_PREFIX) + r"(\d{1,19})(?:_(\d{1,19}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BlockBranch:
    lo: int  # the block's first sequence number
    fence: int | None  # of the follower's process that staged it; None: not of a follower


def parse_branch(name: str) -> BlockBranch | None:
    """None for a branch that is not ours."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    lo, fence = found.groups()
    return BlockBranch(int(lo), None if fence is None else int(fence))
