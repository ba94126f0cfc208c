"""What every section of the settings is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen once it is read; a name that nobody knows is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
