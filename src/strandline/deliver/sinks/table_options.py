"""Options of sinks that deliver into a table."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.core.errors import UsageError
from strandline.deliver.sink import Option

CREATE = Option("create", "Create the table, and columns that are new: `true` or `false`.", default="false")
MAY_BE_EMPTY = Option(
    "may_be_empty",
    "Whether consumers delete all rows of the table: `true` or `false`. If not, an empty table that rows were "
    "delivered to stops the sink.",
    default="false",
    pinned=False,
)


def parse_flag(options: Mapping[str, str], option: Option) -> bool:
    """Raises UsageError unless the value is true or false."""
    value = options.get(option.name) or option.default
    if value not in ("true", "false"):
        raise UsageError(f"option {option.name} is true or false, not {value!r}")
    return value == "true"


def check_present(options: Mapping[str, str], *names: str) -> None:
    """Raises UsageError for the first of these options that has no value."""
    for name in names:
        if not options.get(name):
            raise UsageError(f"option {name} is missing", hint=f"--option {name}=…")
