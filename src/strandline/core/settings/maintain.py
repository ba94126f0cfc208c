"""Settings of maintenance: when it runs by itself, and by which rules."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator, model_validator

from strandline.core.errors import ConfigError
from strandline.core.settings.section import Cron, DurationSetting, Section, named_tables
from strandline.core.text import duration


class CompactSettings(Section):
    """When compaction rewrites files. A compacted file holds its rows in the order of their sequence numbers, so a read
    of new rows opens few files."""

    file_bytes_target: int | None = Field(default=None, ge=1 << 20)
    """Target size of a data file in bytes. Without: the table's `write.target-file-size-bytes`, which is 512 MiB by
    default."""
    small_share: float = Field(default=0.75, gt=0, lt=1)
    """A file below this share of the target size is small. Only small files are compacted."""
    files_min: int = Field(default=5, ge=2)
    """A partition with fewer small files than this is left as it is: compaction would gain little."""
    manifests_max: int = Field(default=100, ge=1)
    """A table with more manifests than this gets its manifests rewritten, because every scan reads them."""


class ExpireSettings(Section):
    """Which snapshots expire. Strandline itself does not need old snapshots; they are for time travel."""

    older_than: DurationSetting = timedelta(days=5)
    """Younger snapshots are kept."""
    keep_min: int = Field(default=10, ge=1)
    """This many of the newest snapshots are kept, however old they are."""


class RetainSettings(Section):
    """For how long the rows of one dataset are kept."""

    older_than: DurationSetting
    """Older rows are deleted once every sink has them: `30d`. A follower deletes them once every sink of its leader has
    them, because it may take over and deliver to those sinks."""
    column: str | None = None
    """The date or timestamp column that gives the age of a row. Without: the time at which the row was ingested. A row
    that has null in the column is kept."""
    on_lag: Literal["hold", "drop"] = "hold"
    """What happens to old rows that a sink does not have yet. `hold`: they stay, and `status` names the sink. `drop`:
    they are deleted after they were held for `drop_after`, and count as lost to the sink."""
    drop_after: DurationSetting | None = None
    """For how long `drop` holds rows before it deletes them: `7d`. Only `drop` takes it."""
    paused_sinks: Literal["count", "ignore"] = "count"
    """Whether retention waits for paused sinks. `ignore`: it does not. A sink that is resumed continues above the
    deleted rows, and they count as lost to it."""

    @model_validator(mode="after")
    def _drop_has_a_bound(self) -> RetainSettings:
        if (self.on_lag == "drop") != (self.drop_after is not None):
            raise ValueError('on_lag = "drop" needs drop_after, and nothing else has it')
        return self

    def spelled(self) -> dict[str, str]:
        """The rule as a person writes it, without defaults. Two rules with the same text are equal."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        given = {n: v for n, v in values.items() if v is not None and v != type(self).model_fields[n].default}
        return {n: duration.spell(v) if isinstance(v, timedelta) else str(v) for n, v in given.items()}


class MaintainSettings(Section):
    """Maintenance: compaction, retention, expiry of snapshots, and sequence numbers for rows that others appended.
    `strandline run` does it by schedule. If it missed runs while it was stopped, it makes up for one."""

    compact_schedule: Cron | None = None
    """When `strandline run` compacts all datasets: a cron expression in UTC. `30 3 * * *` is every night at half past
    three. Without: never."""
    retain_schedule: Cron | None = None
    """When `strandline run` deletes old rows of datasets that have a rule in `retain`: a cron expression in UTC.
    Without: never."""
    expire_schedule: Cron | None = None
    """When `strandline run` expires snapshots of all datasets: a cron expression in UTC. Without: never."""
    number_schedule: Cron | None = None
    """When `strandline run` numbers the rows that others appended to adopted datasets: a cron expression in UTC. Sinks
    get such rows only once they are numbered. Without: only `strandline dataset adopt` numbers them."""
    clock_jump_seconds: int = Field(default=3600, ge=60)
    """If the clock differs from the elapsed time by more than this, it has jumped. Retention then skips the run and
    reports it."""
    runs_kept: int = Field(default=100, ge=2)
    """How many results of each kind of maintenance the ledger keeps for each dataset."""
    compact: CompactSettings = CompactSettings()
    expire: ExpireSettings = ExpireSettings()
    retain: dict[str, RetainSettings] = Field(default_factory=dict)
    """Retention rules by dataset: `[maintain.retain.events]`. A dataset without a rule keeps its rows."""

    @field_validator("retain", mode="before")
    @classmethod
    def _names_with_a_dot(cls, value: object) -> object:
        return dict(named_tables(value)) if isinstance(value, dict) else value

    def schedules(self) -> dict[str, str | None]:
        """The schedules, by kind of maintenance."""
        return {
            "retain": self.retain_schedule,
            "compact": self.compact_schedule,
            "expire": self.expire_schedule,
            "number": self.number_schedule,
        }

    def rules(self) -> dict[str, RetainSettings]:
        """The retention rules, by the full names of datasets."""
        found: dict[str, RetainSettings] = {}
        for name, rule in self.retain.items():
            full = name if "." in name else f"default.{name}"
            if full in found:
                raise ConfigError(f"maintain.retain has two rules for {full}", hint="Keep one of them.")
            found[full] = rule
        return found
