"""Settings of the commands that keep running."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings.section import Section


class RunSettings(Section):
    """What `strandline run`, `strandline serve` and `strandline receive` share."""

    stop_seconds_max: int = Field(default=25, ge=1, le=3600)
    """How long a process may take to stop. On SIGTERM, work ends at its next durable step and Spark jobs are cancelled.
    Work that has not ended in time is killed, which is safe. The default is below the 30 seconds that Kubernetes
    waits."""
    jitter_seconds_max: int = Field(default=30, ge=0, le=3600)
    """A scheduled job starts up to this many seconds late. Each process and job has its own delay, so that they do not
    all start in the same second. The delay is at most half of the time to the next run."""

    @property
    def part_seconds_max(self) -> int:
        """How long one part of a process may take to end, so that parts that wait for each other end in time."""
        return max(1, self.stop_seconds_max // 3)
