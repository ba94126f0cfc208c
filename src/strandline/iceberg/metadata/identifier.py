"""Names of tables: `namespace.table`. Without a namespace, it is `default`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.errors import SchemaError

# the catalog's name in Spark and in the rows of the SQLite catalog: every program that opens it must use the same
CATALOG = "lake"
DEFAULT_NAMESPACE = "default"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*")
_QUOTED = r"`(?:[^`]|``)+`"
_WITH_QUOTED = re.compile(rf"(?:{_QUOTED}|[^.`]+)(?:\.(?:{_QUOTED}|[^.`]+))*")
_ANY_PART = re.compile(rf"{_QUOTED}|[^.`]+")


def parse_identifier(name: str) -> tuple[str, ...]:
    """The levels of the namespace, then the table. A part that contains a dot is in backticks, as in Spark. Raises
    SchemaError."""
    if "`" in name and _WITH_QUOTED.fullmatch(name):
        parts = tuple(_unquoted(part) for part in _ANY_PART.findall(name))
    else:
        parts = tuple(name.split("."))
    if not all(part.strip() for part in parts):
        raise SchemaError(f"not the name of a table: {name!r}", hint="Use TABLE or NAMESPACE.TABLE.")
    return parts if len(parts) > 1 else (DEFAULT_NAMESPACE, *parts)


def full_name(name: str) -> str:
    return name_of(parse_identifier(name))


def name_of(identifier: Sequence[str]) -> str:
    """The inverse of `parse_identifier`."""
    return ".".join(quoted(p) if "." in p or _unquoted(p) != p else p for p in identifier)


def short_name(name: str) -> str:
    """The inverse of `full_name`, without the namespace `default` where the rest is one plain name."""
    namespace, _, rest = name.partition(".")
    return rest if namespace == DEFAULT_NAMESPACE and rest and not set(rest) & {".", "`"} else name


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if re.fullmatch(_QUOTED, part) else part


def in_spark(name: str) -> str:
    return f"{CATALOG}.{name}"


def quoted(column: str) -> str:
    """The name in backticks, so that Spark reads a name with a dot or a backtick as one name."""
    return "`" + column.replace("`", "``") + "`"


def check_new_name(name: str) -> None:
    """Raises SchemaError unless the name is plain, because it becomes folders and is used in SQL. Only for new
    datasets: tables that exist may have other names."""
    for part in parse_identifier(name):
        if not _PART.fullmatch(part):
            raise SchemaError(
                f"{name!r} cannot be the name of a dataset",
                hint="Use letters, digits, _ and -, and a dot between namespace and table.",
            )
