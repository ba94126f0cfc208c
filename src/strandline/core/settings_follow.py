"""Settings of a site that follows another one."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings_section import Section


class FollowSettings(Section):
    """How a follower keeps up with its leader. At a leader, these settings mean nothing."""

    poll_seconds: float = Field(default=1.0, gt=0, le=3600)
    """How often the follower asks its leader whether there is something new."""
    items_at_once_max: int = Field(default=4, ge=1, le=64)
    """How many items (published batches, purges) are applied side by side, those of different shards first."""
    offer_items_max: int = Field(default=1000, ge=1, le=100_000)
    """How many items of a dataset are recorded at once. A follower that is far behind gets several offers."""
