"""The bounds of a read, and the opaque, versioned continuation token that carries them to the next read."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache

from strandline.core.errors import TokenError
from strandline.core.types import SEQ_MAX, Seq

VERSION = 1
_FORM = re.compile(r"sl([0-9]{1,9})\.(.*)", re.DOTALL)
_HINT = "Use a token as `read` printed it, or leave it out to read from the beginning."


@dataclass(frozen=True, slots=True)
class Continuation:
    lake: str
    dataset: str  # its id, the same at every site of the lake; for datasets older than ids, the uuid of their table
    after: Seq | None  # the last row that the reader has; None if it has none yet

    def encode(self) -> str:
        body = json.dumps([self.lake, self.dataset, self.after], separators=(",", ":")).encode()
        checked = zlib.crc32(body).to_bytes(4, "big") + body
        return f"sl{VERSION}." + base64.urlsafe_b64encode(checked).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Rows with `after < _ingest_seq <= until`; `until` is None if nothing is settled yet."""

    after: Seq | None
    until: Seq | None

    @property
    def empty(self) -> bool:
        return self.until is None or (self.after is not None and self.after >= self.until)

    @property
    def end(self) -> Seq | None:
        """The last sequence number of a reader that has read everything within the bounds; never below `after`."""
        return self.after if self.until is None else Seq(max(self.until, self.after or self.until))


@lru_cache(maxsize=1 << 10)  # a status decodes the same token of every lane each time
def decode(token: str) -> Continuation:
    token = token.strip()
    parts = _FORM.fullmatch(token)
    if parts is None:
        raise TokenError("this is not a continuation token", hint=_HINT)
    version, text = parts.groups()
    if int(version) > VERSION:
        raise TokenError(
            f"the token has version {version}, this program knows up to {VERSION}",
            hint="Use the newer version of Strandline that made it.",
        )
    try:
        checked = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if int.from_bytes(checked[:4], "big") != zlib.crc32(checked[4:]):
            raise ValueError("checksum")
        lake, dataset, after = json.loads(checked[4:])
        if not (isinstance(lake, str) and isinstance(dataset, str)):
            raise ValueError("names")
        if after is not None and not (isinstance(after, int) and 1 <= after <= SEQ_MAX):
            raise ValueError("sequence")
        found = Continuation(lake, dataset, None if after is None else Seq(after))
        if found.encode() != token:  # the checksum covers neither the version nor spare bits of the last character
            raise ValueError("spelling")
    except (ValueError, TypeError, RecursionError) as e:
        raise TokenError("the token is damaged", hint=_HINT) from e
    return found


def check_left_out(name: str, term: int | None) -> None:
    """Raises TokenError if `term` is given: the term of a leader whose rows this site does not have, and which assigned
    the token's sequence number."""
    if term is not None:
        raise TokenError(
            f"{name}: the token's sequence number is from the leader of term {term}, and the present leader was "
            "promoted by force without that leader's rows: a read from this token could miss rows",
            hint="Read from the beginning, or with a token from before that term.",
        )


def check(token: Continuation, *, lake: str, dataset: str, name: str, sealed: Seq | None) -> Seq | None:
    """Returns where to continue; `TokenError` if the token is not of this dataset, or is ahead of the seal."""
    if token.lake != lake:
        raise TokenError("the token is from another lake", hint=_HINT)
    if token.dataset != dataset:
        raise TokenError(
            f"the token is from another dataset than {name} is now",
            hint="The dataset was dropped and made again, or the token belongs to another dataset.",
        )
    if token.after is not None and (sealed is None or token.after > sealed):
        raise TokenError(
            f"the token is ahead of what is settled ({token.after}, sealed: {sealed})",
            hint="The ledger was restored from an older copy, or the token is not of this lake's past.",
        )
    return token.after
