"""Refuses requests that another site makes a browser send with our cookie."""

from __future__ import annotations

import hmac

from fastapi import Request

from strandline.serve.problems import CROSS_SITE, Problem

HEADER = "X-CSRF-Token"


def check_own_page(request: Request) -> None:
    """Raises Problem if the browser says that another site sent the request. Browsers that say nothing are old; the
    token decides for them."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Problem(CROSS_SITE, "the browser says that another site sent this request")
    origin = request.headers.get("origin")
    # Not the scheme: behind a proxy that encrypts, the browser speaks HTTPS and we do not.
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise Problem(CROSS_SITE, "the browser says that another site sent this request")


def check_token(request: Request, expected: str, given: str | None = None) -> None:
    """`given` is the hidden field of a form; without one, the token must be in the header."""
    found = given if given is not None else request.headers.get(HEADER, "")
    if not hmac.compare_digest(found.encode("utf-8", "replace"), expected.encode()):
        raise Problem(
            CROSS_SITE,
            "the request lacks the token of its session",
            f"`GET /api/v1/session` has it as `csrf`; send it as {HEADER}.",
        )
