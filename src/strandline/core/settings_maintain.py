"""Settings of maintenance: when it runs by itself, and by which rules."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator, model_validator

from strandline.core import duration
from strandline.core.errors import ConfigError
from strandline.core.settings_section import Cron, Duration, Section, named_tables


class CompactSettings(Section):
    """When files are worth writing anew. A file holds rows in the order of their sequence numbers, so that a
    read of new rows opens little."""

    file_bytes_target: int | None = Field(default=None, ge=1 << 20)
    """Bytes that a data file is to have. Without: what the table says (`write.target-file-size-bytes`), which is 512
    MiB unless somebody set it."""
    small_share: float = Field(default=0.75, gt=0, lt=1)
    """A file below this share of the target is small. What is not small stays as it is."""
    files_min: int = Field(default=5, ge=2)
    """Fewer small files than this in a partition are left alone: little is gained."""
    manifests_max: int = Field(default=100, ge=1)
    """More manifests than this, and they are written anew, too: every plan reads them."""


class ExpireSettings(Section):
    """Which snapshots go. What Strandline needs does not depend on them: they are for people who look back."""

    older_than: Duration = timedelta(days=5)
    """Snapshots that are younger are kept."""
    keep_min: int = Field(default=10, ge=1)
    """So many of the newest are kept, however old they are."""


class RetainSettings(Section):
    """For how long the rows of one dataset are kept."""

    older_than: Duration
    """Rows that are older are deleted, once every sink has them: `30d`. At a site that follows, once every sink of its
    leader has them: it may take over, and go on with those sinks."""
    column: str | None = None
    """A date or timestamp that says how old a row is. Without: when it was ingested. A row without a value is kept."""
    on_lag: Literal["hold", "drop"] = "hold"
    """What becomes of rows that are due and that a sink does not have yet. `hold`: they stay, and `status` says for
    whom. `drop`: they are deleted when they were held for `drop_after`, and counted as lost."""
    drop_after: Duration | None = None
    """With `drop`, and only there: `7d`."""
    paused_sinks: Literal["count", "ignore"] = "count"
    """Whether rows wait for sinks that are paused. `ignore`: a paused sink that goes on begins above what was deleted
    meanwhile; it is counted as lost to it."""

    @model_validator(mode="after")
    def _drop_has_a_bound(self) -> RetainSettings:
        if (self.on_lag == "drop") != (self.drop_after is not None):
            raise ValueError('on_lag = "drop" needs drop_after, and nothing else has it')
        return self

    def spelled(self) -> dict[str, str]:
        """As a person writes it, without what has its default value. Two rules with the same text are equal."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        given = {n: v for n, v in values.items() if v is not None and v != type(self).model_fields[n].default}
        return {n: duration.spell(v) if isinstance(v, timedelta) else str(v) for n, v in given.items()}


class MaintainSettings(Section):
    """Compaction, retention, expiry, and numbers for rows that others appended: when `strandline run` does them by
    itself, and by which rules. One that was missed while no daemon ran is made up for once."""

    compact_schedule: Cron | None = None
    """When every dataset is compacted. As cron writes it, in UTC: `30 3 * * *` is every night at half past three.
    Without: never by itself."""
    retain_schedule: Cron | None = None
    """When old rows are deleted, in datasets that have a rule in `retain`. As above."""
    expire_schedule: Cron | None = None
    """When snapshots of every dataset expire. As above."""
    number_schedule: Cron | None = None
    """When rows that others appended to adopted datasets get their numbers, so that sinks get them. As above. Without:
    only when somebody runs `strandline dataset adopt`."""
    clock_jump_seconds: int = Field(default=3600, ge=60)
    """A clock that moved by so much more, or less, than time went by has jumped: retention skips a run, and says so."""
    runs_kept: int = Field(default=100, ge=2)
    """Results of so many runs of a kind are kept for each dataset."""
    compact: CompactSettings = CompactSettings()
    expire: ExpireSettings = ExpireSettings()
    retain: dict[str, RetainSettings] = Field(default_factory=dict)
    """Rules, by dataset: `[maintain.retain.events]`. A dataset without one keeps its rows."""

    @field_validator("retain", mode="before")
    @classmethod
    def _names_with_a_dot(cls, value: object) -> object:
        return dict(named_tables(value)) if isinstance(value, dict) else value

    def schedules(self) -> dict[str, str | None]:
        """By kind of maintenance."""
        return {
            "retain": self.retain_schedule,
            "compact": self.compact_schedule,
            "expire": self.expire_schedule,
            "number": self.number_schedule,
        }

    def rules(self) -> dict[str, RetainSettings]:
        """By the full names of datasets."""
        found: dict[str, RetainSettings] = {}
        for name, rule in self.retain.items():
            full = name if "." in name else f"default.{name}"
            if full in found:
                raise ConfigError(f"maintain.retain has two rules for {full}", hint="Keep one of them.")
            found[full] = rule
        return found
