"""Refuses requests that another site makes a browser send with our cookie."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from fastapi import Request

from strandline.serve.problems import CROSS_SITE, Problem

SAFE_METHODS = ("GET", "HEAD")  # they change nothing
HEADER = "X-CSRF-Token"
FIELD = "csrf"
_FORM = "application/x-www-form-urlencoded"
_FIELDS_MAX = 64
_OWN_PAGE = "Use a page of this server; a program sends its token as Authorization: Bearer TOKEN."


def check_own_page(request: Request) -> None:
    """Raises Problem if the browser names another site as the sender. Old browsers name none: the token decides."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Problem(CROSS_SITE, "this request was sent by another web site (Sec-Fetch-Site)", _OWN_PAGE)
    if site == "same-origin":
        return  # also behind a proxy that replaces Host
    origin, host = request.headers.get("origin"), request.headers.get("host")
    # Not the scheme: behind a proxy that encrypts, the browser speaks HTTPS and we do not.
    if origin is not None and (not host or origin.partition("://")[2] != host):
        raise Problem(CROSS_SITE, "this request was sent by another web site (Origin)", _OWN_PAGE)


async def check_token(request: Request, expected: str) -> None:
    """The token must be in the header, or in the hidden field of a form. Raises Problem."""
    found = request.headers.get(HEADER)
    if found is None:
        found = (await read_form(request)).get(FIELD, "")
    if not hmac.compare_digest(found.encode("utf-8", "replace"), expected.encode()):
        raise Problem(
            CROSS_SITE,
            "the request lacks the token of its session",
            f"`GET /api/v1/session` has it as `csrf`; send it as {HEADER}.",
        )


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, each with its first value; none of a body that is no form or cannot be read as one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    try:
        found = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=_FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items()}
