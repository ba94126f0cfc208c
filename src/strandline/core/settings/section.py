"""What the sections of the settings are made of: their base class, and the types of schedules and durations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from strandline.core.errors import UsageError
from strandline.core.text import duration


class Section(BaseModel):
    """Frozen values; unknown names are refused. `docs/settings.md` shows the text below each setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def named_tables(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads `[retain.shop.events]` as a table within a table; it is one name. A table that has nothing but tables
    is a namespace."""
    for name, value in tables.items():
        if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
            yield from named_tables(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cron(text: str) -> str:
    from cronsim import CronSim, CronSimError  # not loaded if nothing is scheduled

    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as e:
        raise ValueError(f"`{text}` is not a schedule ({e}); write it as cron does: `30 3 * * *`") from e
    return text


Cron = Annotated[str, AfterValidator(_cron)]


def _duration(value: object) -> object:
    if not isinstance(value, str):
        if isinstance(value, timedelta):
            return value
        raise ValueError(f"{value!r} is not a duration; write a number and s, m, h or d, in quotes: '30d'")
    try:
        return duration.parse(value)
    except UsageError as e:
        raise ValueError(e.message if e.hint is None else f"{e.message}. {e.hint}") from e


DurationSetting = Annotated[timedelta, BeforeValidator(_duration)]
