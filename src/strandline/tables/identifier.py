"""How tables are called: `namespace.table`, and `default` where no namespace is given."""

from __future__ import annotations

import re

from strandline.errors import SchemaError

DEFAULT_NAMESPACE = "default"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*")


def parse_identifier(name: str) -> tuple[str, ...]:
    """The levels of the namespace, then the table."""
    parts = tuple(name.split("."))
    if not all(part.strip() for part in parts):
        raise SchemaError(f"not the name of a table: {name!r}", hint="Say TABLE or NAMESPACE.TABLE.")
    return parts if len(parts) > 1 else (DEFAULT_NAMESPACE, *parts)


def full_name(name: str) -> str:
    return ".".join(parse_identifier(name))


def quoted(column: str) -> str:
    """As Spark reads it: a name with a dot or a backtick in it is one name."""
    return "`" + column.replace("`", "``") + "`"


def check_new_name(name: str) -> None:
    """A new table's name becomes folders and is written in SQL, so it is kept plain. Others' names are taken as they
    are."""
    for part in parse_identifier(name):
        if not _PART.fullmatch(part):
            raise SchemaError(
                f"{name!r} cannot be the name of a dataset",
                hint="Use letters, digits, _ and -, and a dot between namespace and table.",
            )
