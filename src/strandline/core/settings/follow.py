"""Settings of a site that follows another one."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings.section import Section

OFFER_ITEMS_MAX = 10_000  # what a leader's API grants


class FollowSettings(Section):
    """How a follower keeps up with its leader. A leader ignores these settings."""

    poll_seconds: float = Field(default=1.0, gt=0, le=3600)
    """How often the follower asks its leader for new items."""
    items_at_once_max: int = Field(default=4, ge=1, le=64)
    """How many items (published batches, purges) the follower applies at the same time. It prefers items of different
    shards."""
    offer_items_max: int = Field(default=1000, ge=1, le=OFFER_ITEMS_MAX)
    """How many items of a dataset one offer may have. A follower that is far behind gets several offers, one after the
    other."""
