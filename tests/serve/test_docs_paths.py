"""The paths of the API and of the receiver that pages name are there."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from fastapi.routing import iter_route_contexts

from strandline.lake import Lake
from strandline.receive.http.app import create_app as create_receiver
from tests.serve.test_roles import routes
from tests.unit.test_docs import PAGES, name

NAMED = re.compile(
    r"(?:\b(?P<method>GET|POST|PUT|PATCH|DELETE) |(?<=localhost:)842\d|(?<=`))"
    r"(?P<path>/(?:api/)?v1/[^\s`\"'?]*|/metrics|/healthz|/readyz)"
)


def test_every_path_that_a_page_names_is_there(lake: Lake) -> None:
    there = [(method, path) for path, method, _ in routes(lake)]
    receiver = create_receiver(cast("Any", SimpleNamespace(config=lake.config)))
    for route in iter_route_contexts(receiver.routes):
        there += [(method, route.path_format or route.path or "") for method in route.methods or ()]
    named = [(name(page), m["method"], m["path"]) for page in PAGES for m in NAMED.finditer(page.read_text("utf-8"))]
    assert len(named) > 20
    missing = [one for one in named if not any(one[1] in (None, m) and fits(one[2], path) for m, path in there)]
    assert missing == []


def fits(path: str, template: str) -> bool:
    """`…` at the end of a page's path stands for what follows; names may stand where the template has braces."""
    wanted, known = path.rstrip("/…").split("/"), template.split("/")
    is_whole = path == path.rstrip("/…")
    if len(wanted) != len(known) and (is_whole or len(wanted) > len(known)):
        return False
    return all(w == k or k.startswith("{") for w, k in zip(wanted, known, strict=False))
