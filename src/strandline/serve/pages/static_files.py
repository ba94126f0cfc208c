"""The stylesheet and the script, under names that change with their content: browsers keep them for a year."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter

from strandline.serve.auth.needs import anyone
from strandline.serve.problems import NOT_FOUND, Problem

_FOLDER = Path(__file__).parent / "static"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"
_FOR_A_WHILE = "public, max-age=300"

router = APIRouter(include_in_schema=False)


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Content and hash by name. Only these are served, so no path leads out of the folder."""
    found = {p.name: p.read_bytes() for p in sorted(_FOLDER.iterdir()) if p.suffix in _KINDS}
    return {name: (content, sha256(content).hexdigest()[:12]) for name, content in found.items()}


def static_url(name: str) -> str:
    return f"/static/{name}?v={_files()[name][1]}"


@router.get("/static/{name}")
async def static_file(request: Request, name: Annotated[str, PathParameter()], _: None = anyone()) -> Response:
    found = _files().get(name)
    if found is None:
        raise Problem(NOT_FOUND, f"there is no file {name}", "Load the page again: it names the files that there are.")
    content, version = found
    etag = f'"{version}"'
    headers = {
        "Cache-Control": _FOR_EVER if request.query_params.get("v") == version else _FOR_A_WHILE,
        "ETag": etag,
    }
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, _KINDS[Path(name).suffix])
