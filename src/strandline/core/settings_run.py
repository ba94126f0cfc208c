"""Settings of the commands that keep running."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings_section import Section


class RunSettings(Section):
    """What `strandline run`, `strandline serve` and `strandline receive` share."""

    stop_seconds_max: int = Field(default=25, ge=1, le=3600)
    """How long a process may take to end when it is told to. Work under way is called off at its next durable step, and
    Spark's jobs are cancelled. What has not ended by then is cut off, which is as safe as a kill. The default is below
    the 30 seconds after which Kubernetes kills."""
    jitter_seconds_max: int = Field(default=30, ge=0, le=3600)
    """A scheduled job begins up to so many seconds after its time. Each process and job has its own number, so that not
    everything begins in the same second. Never more than half of the time to the next."""

    @property
    def part_seconds_max(self) -> int:
        """How long one part of a process may take to end, so that parts that wait for each other end in time."""
        return max(1, self.stop_seconds_max // 3)
