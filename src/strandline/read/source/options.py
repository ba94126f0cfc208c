"""Parses the options of the data source, which Spark passes as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from strandline.core import read_token as tokens
from strandline.core.errors import UsageError
from strandline.core.read_token import Continuation
from strandline.core.sites.replication import OnLag
from strandline.core.text import duration
from strandline.core.text.whole_number import whole_number

Since = Continuation | Literal["earliest", "latest"]

KNOWN = {
    "lake": "The lake's settings file, or its folder; without it, STRANDLINE_CONFIG, or this folder's.",
    "dataset": 'The dataset, also as `load("NAME")`.',
    "consumer": "The name under which the lake knows this reader, and keeps rows for it.",
    "since": "Where a new query begins: `earliest`, `latest` or a continuation token.",
    "until": "The last sequence number that is read.",
    "columns": "Only these columns: `a,b`, or a JSON list.",
    "where": "Only rows that fit: comparisons, IN, IS NULL, LIKE 'abc%', AND, OR and NOT.",
    "partition": "Only this logical partition: `COL=VALUE,…`; ~ is null.",
    "max_rows_per_trigger": "At most this many rows in a batch of a stream.",
    "with_sequence": "Whether rows have their sequence number: `true` or `false`.",
    "on_lag": "Rows that are due for deletion and that the consumer lacks: `hold` or `drop`.",
    "drop_after": "With `on_lag` = drop: for how long rows are kept for it, such as `12h` or `30d`.",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    lake: str | None
    dataset: str
    consumer: str | None = None
    since: Since | None = None
    until: int | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    partition: Mapping[str, str | None] | None = None
    rows_max: int | None = None
    with_sequence: bool = False
    on_lag: OnLag | None = None  # None: as the consumer has it
    drop_after: timedelta | None = None


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Raises UsageError for an option that does not exist or has no such value. Names are in lower case."""
    options = {name.lower(): value for name, value in given.items()}
    path = options.pop("path", None)
    if unknown := sorted(set(options) - set(KNOWN)):
        raise UsageError(f"there is no option {unknown[0]}", hint=f"Options: {', '.join(KNOWN)}.")
    if path is not None and "dataset" in options:
        raise UsageError("the dataset is named twice: by the option `dataset`, and by what is loaded")
    dataset = options.get("dataset", path)
    if not dataset:
        raise UsageError("the option `dataset` is missing", hint="It names the dataset to read.")
    on_lag, drop_after = _lag(options)
    return SourceOptions(
        options.get("lake"),
        dataset,
        options.get("consumer"),
        _since(options.get("since")),
        _positive(options, "until"),
        _columns(options.get("columns")),
        options.get("where"),
        _partition(options.get("partition")),
        _positive(options, "max_rows_per_trigger"),
        _flag(options, "with_sequence"),
        on_lag,
        drop_after,
    )


def _since(text: str | None) -> Since | None:
    match text:
        case None:
            return None
        case "earliest" | "latest":
            return text
    return tokens.decode(text)


def _positive(options: Mapping[str, str], name: str) -> int | None:
    if (text := options.get(name)) is None:
        return None
    if not (found := whole_number(text)):
        raise UsageError(f"the option `{name}` is a whole number from 1 on, not {text!r}")
    return found


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"the option `{name}` is `true` or `false`, not {text!r}")
    return text == "true"


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names: object = None
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            raise UsageError("the option `columns` is neither `a,b` nor a JSON list of names") from None
    else:
        names = [name.strip() for name in text.split(",")]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise UsageError("the option `columns` names columns: `a,b`, or a JSON list of names")
    return tuple(names)


def _partition(text: str | None) -> dict[str, str | None] | None:
    if text is None:
        return None
    found: dict[str, str | None] = {}
    for part in text.split(","):
        column, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"the option `partition` is COL=VALUE,…, not {part!r}")
        found[column.strip()] = None if value == "~" else value
    return found


def _lag(options: Mapping[str, str]) -> tuple[OnLag | None, timedelta | None]:
    text, after = options.get("on_lag"), options.get("drop_after")
    if text is not None and text not in tuple(OnLag):
        raise UsageError(f"the option `on_lag` is `hold` or `drop`, not {text!r}")
    if (text == "drop") != (after is not None):
        raise UsageError("the options `on_lag` = drop and `drop_after` belong together")
    if text is not None and "consumer" not in options:
        raise UsageError("the option `on_lag` is for a reader with a name", hint="Name it with the option `consumer`.")
    return None if text is None else OnLag(text), None if after is None else duration.parse(after)


def check_bounded(options: SourceOptions) -> None:
    """Raises UsageError for an option that only streams have."""
    given = {"consumer": options.consumer, "max_rows_per_trigger": options.rows_max}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UsageError(
            f"the option `{wrong[0]}` is for streams (`spark.readStream`)",
            hint="A bounded read stores no progress. `strandline read --consumer` reads under a name.",
        )
