"""Settings of the environment, which win over those of the file: `STRANDLINE_SECTION__NAME`, or a whole section as JSON
in `STRANDLINE_SECTION`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel

from strandline.core.errors import ConfigError

PREFIX = "STRANDLINE_"
NESTED = "__"


def with_environment(values: Mapping[str, Any], model: type[BaseModel], environ: Iterable[str]) -> Mapping[str, Any]:
    """The values of the file, with those of the environment over them. Raises ConfigError. `environ`: its names."""
    if not any(_names_a_section(variable, model) for variable in environ):
        return values
    # Importing it is a tenth of the time of a short command, and most have no such variable.
    from pydantic_settings import BaseSettings, EnvSettingsSource
    from pydantic_settings.exceptions import SettingsError

    settings = cast("type[BaseSettings]", model)  # it needs the fields of a model, and no more
    try:
        return _merged(values, EnvSettingsSource(settings, env_prefix=PREFIX, env_nested_delimiter=NESTED)())
    except SettingsError as e:
        raise ConfigError(
            f"a variable {PREFIX}… in the environment is not JSON: {e}",
            hint="`docs/settings.md` explains every setting.",
        ) from e


def variables_of(sections: Iterable[str], environ: Iterable[str]) -> list[str]:
    """The names of the environment that set something in these sections."""
    wanted = {f"{PREFIX}{section}".upper() for section in sections}
    return sorted(name for name in environ if name.upper().partition(NESTED)[0] in wanted)


def _names_a_section(variable: str, model: type[BaseModel]) -> bool:
    name = variable.lower()  # variables are the same in either case
    section = name.removeprefix(PREFIX.lower()).partition(NESTED)[0]
    return name.startswith(PREFIX.lower()) and section in model.model_fields


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for name, value in above.items():
        known = found.get(name)
        found[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return found
