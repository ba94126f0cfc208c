"""The OpenAPI description: a schema for every answer, problems included. Tests check real answers against it.

Most schemas come from the values themselves, as `status/documents/lake_documents.py` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import TypeAdapter

Schema = dict[str, Any]
INNER_MAX = 100  # entries of a list inside a document

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "integer"}
REAL: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
MOMENT: Schema = {"type": "string", "format": "date-time"}
ANY: Schema = {}
OPEN: Schema = {"type": "object"}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def fields(**properties: Schema) -> Schema:
    """An object with all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def one_of(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def page_of(name: str, schema: Schema, next_page: Schema = TEXT) -> Schema:
    """`next` is what to give as `after` or `before` for the page that follows; null on the last one."""
    return fields(**{name: list_of(schema), "next": or_null(next_page)})


def first_of(name: str, schema: Schema, paged_at: str | None, most: int = INNER_MAX) -> dict[str, Schema]:
    """The fields of a list inside a document: its first entries, and how many there are."""
    where = "" if paged_at is None else f" `{paged_at}` has all."
    return {
        name: {**list_of(schema), "maxItems": most, "description": f"The first {most}.{where}"},
        f"{name}_total": {**COUNT, "description": "How many there are."},
    }


def without(schema: Schema, *names: str) -> Schema:
    kept = {name: value for name, value in schema["properties"].items() if name not in names}
    return {"type": "object", "properties": kept, "required": list(kept)}


def also(schema: Schema, **properties: Schema) -> Schema:
    merged = schema["properties"] | properties
    return {"type": "object", "properties": merged, "required": list(merged)}


def of_value(value: Any) -> Schema:
    """The schema of a dataclass as `core/documents.py` shows it: every field is there."""
    found = TypeAdapter(value).json_schema(mode="serialization")
    inner = found.pop("$defs", {})
    return cast("Schema", _plain(found, inner))


def _plain(schema: Any, inner: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_plain(part, inner) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if (ref := schema.get("$ref")) is not None:
        return _plain(inner[ref.rpartition("/")[2]], inner)
    if schema.get("format") == "duration":  # shown in seconds
        return dict(REAL)
    made = {k: _plain(v, inner) for k, v in schema.items() if k not in ("title", "default", "description")}
    # A pair of the same, in words that every reader of a description knows.
    if (prefix := made.get("prefixItems")) and all(part == prefix[0] for part in prefix):
        made["items"] = made.pop("prefixItems")[0]
    if schema.get("type") == "object" and "properties" in schema:
        # a field may have one of these names
        made["properties"] = {k: _plain(v, inner) for k, v in schema["properties"].items()}
        made["required"] = list(schema["properties"])
    return made


PROBLEM: Schema = fields(
    type=TEXT,
    title=TEXT,
    status={"type": "integer", "minimum": 400, "maximum": 599},
    detail=TEXT,
    hint=or_null(TEXT),
    retryable=FLAG,
)
HEALTH = fields(ok=FLAG)
READY = fields(ready=FLAG, checks=list_of(fields(name=TEXT, ready=FLAG, reason=or_null(TEXT))))

_PROBLEMS = {
    400: "The request is invalid: a name, a condition or a combination is wrong.",
    401: "No token, or one that is unknown, revoked or expired.",
    403: "The role or the scope of the token is not enough, or another site sent the request.",
    404: "There is no such thing, or the token is not for its dataset.",
    408: "The body took too long.",
    409: "The state of the lake does not allow it now; `detail` and `hint` say why, and what to do.",
    413: "The body is too large.",
    422: "The request does not match the description; `errors` says where.",
    429: "Too many requests, or too much long work: try again after `Retry-After` seconds.",
    503: "The ledger, the warehouse or a destination does not answer. With `Retry-After`, try again.",
}
BEFORE_ROUTING = (408, 413, 429)  # `limits.py`: any path but those that watch the server
ALWAYS = (401, 403, 422, 503, *BEFORE_ROUTING)
NAMED = (400, 404, *ALWAYS)
READS_A_TABLE = (409, *NAMED)  # the table may not be fit to be read
CHANGES = (400, 404, 409, *ALWAYS)


def documented(
    schema: Schema | None,
    *,
    status: int = 200,
    kind: str = "application/json",
    problems: Sequence[int] = ALWAYS,
    said: str = "Done.",
    also: Mapping[int, tuple[str, Schema]] | None = None,
) -> dict[str, Any]:
    """The arguments of a route that say what it answers."""
    good: dict[str, Any] = {"description": said}
    if schema is not None:
        good["content"] = {kind: {"schema": schema}}
    found: dict[int | str, dict[str, Any]] = {status: good}
    for code in sorted(problems):
        found[code] = {
            "description": _PROBLEMS[code],
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    for code, (words, other) in (also or {}).items():
        found[code] = {"description": words, "content": {"application/json": {"schema": other}}}
    return {"status_code": status, "responses": found}
