"""Lists a large bucket, page by page and within a time limit.

botocore signs the requests; this module sends them and parses the answers, because botocore takes seven times as long
for a page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from strandline.core.settings.lake_config import LakeConfig
from strandline.storage.s3_client import make_client
from strandline.storage.s3_settings import LISTING_LIMITS, S3Settings, split_url

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

    import httpx

NANOSECONDS = 1_000_000_000
LISTING_SECONDS_MAX = 3_600  # a younger object that was not listed may have been written during the listing
CUT_SHORT = "the store ended the listing too early"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TEXT = "\ufffd"  # replaces a character that XML cannot express, in stores that do not escape names
_BUSY = 429
_BROKEN = 500

Check = Callable[[], None]
ListedObject = tuple[str, int, int]  # key, size, and time in nanoseconds: 0 if unknown


class PagesEnd(Exception):
    """There is no further page. The pages so far are correct, but incomplete."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long a listing may take."""

    seconds: float
    until: float  # by the monotonic clock
    ask: Check  # raises to abort

    @classmethod
    def of(cls, seconds: float, ask: Check | None = None) -> Allowance:
        return cls(seconds, time.monotonic() + seconds, ask or (lambda: None))

    @property
    def seconds_left(self) -> float:
        return max(self.until - time.monotonic(), 0.0)

    def check(self) -> None:
        self.ask()
        if self.seconds_left == 0:
            raise PagesEnd(f"not listed in {self.seconds:g} s", timed_out=True)


@dataclass(frozen=True, slots=True)
class Page:
    objects: list[ListedObject]
    folders: list[str]  # keys that end with a slash; only if one level was listed
    has_more: bool
    token: str | None

    @property
    def last(self) -> str:
        """Nothing in the page comes after this key. After a folder comes everything that begins with its name and a
        slash; `0` is the character after the slash."""
        return max([*(f"{folder[:-1]}0" for folder in self.folders), *(found[0] for found in self.objects)], default="")


@dataclass(frozen=True, slots=True)
class ListedBucket:
    """Can be sent to another process: it keeps no connection."""

    name: str
    settings: S3Settings

    @classmethod
    def of(cls, config: LakeConfig) -> ListedBucket:
        warehouse = config.settings.warehouse
        return cls(split_url(warehouse.url)[0], S3Settings.of_warehouse(warehouse))

    def key_of(self, path: str) -> str | None:
        """None if the path is in another bucket."""
        start = f"s3://{self.name}/"
        return path[len(start) :] if path.startswith(start) else None

    def pages(self, prefix: str, *, is_level: bool, allowed: Allowance) -> Iterator[Page]:
        """Pages of the objects that begin with the prefix; of one level (`is_level`), objects and folders without what
        is below those. Raises `PagesEnd` if the listing is incomplete."""
        base = {"Prefix": prefix} | ({"Delimiter": "/"} if is_level else {})
        more: dict[str, str] = {}
        last = ""
        while True:
            page = self._page(base | more, allowed)
            yield page
            last = max(last, page.last)
            if not page.has_more:
                break
            if not page.token or page.token == more.get("ContinuationToken"):
                raise PagesEnd(CUT_SHORT)
            more = {"ContinuationToken": page.token}
        if last and self._has_more(prefix, last, allowed):
            raise PagesEnd(CUT_SHORT)

    def _has_more(self, prefix: str, last: str, allowed: Allowance) -> bool:
        """Whether an old object comes after the last one, though the store said that the listing is complete."""
        old_ns = nanoseconds(datetime.now(UTC) - timedelta(seconds=LISTING_SECONDS_MAX))
        more: dict[str, str] | None = {"StartAfter": last}
        while more is not None:
            page = self._page({"Prefix": prefix} | more, allowed)
            if any(key > last and modified_ns < old_ns for key, _, modified_ns in page.objects):
                return True
            more = {"ContinuationToken": page.token} if page.has_more and page.token else None
        return False

    def _page(self, query: Mapping[str, str], allowed: Allowance) -> Page:
        import xml.etree.ElementTree as ET

        import httpx
        from botocore.exceptions import BotoCoreError

        why = ""
        for _ in LISTING_LIMITS.attempts(lambda seconds: time.sleep(min(seconds, allowed.seconds_left))):
            allowed.check()
            try:
                status, body = _connected(self).get(query, allowed)
                if status == 200:
                    return _parsed(ET.fromstring(body))
                why = f"the store refused ({status} {_code(body)})"
                if status < _BROKEN and status != _BUSY:
                    break
            except (httpx.HTTPError, ET.ParseError) as e:
                # Without the error's text: the address is signed.
                why = f"the store cannot be reached, or its answer cannot be read ({type(e).__name__})"
            except (BotoCoreError, httpx.InvalidURL, ValueError) as e:
                raise PagesEnd(f"no request can be made ({type(e).__name__})") from None
        allowed.check()
        raise PagesEnd(why)


@dataclass(frozen=True, slots=True)
class _ListingConnection:
    bucket: str
    signing: Any
    sending: httpx.Client

    def get(self, query: Mapping[str, str], allowed: Allowance) -> tuple[int, bytes]:
        import httpx

        parameters = {"Bucket": self.bucket, "EncodingType": "url", **query}
        address = self.signing.generate_presigned_url("list_objects_v2", Params=parameters)
        seconds = max(min(LISTING_LIMITS.read_timeout_seconds, allowed.seconds_left), 0.01)
        timeout = httpx.Timeout(seconds, connect=min(LISTING_LIMITS.connect_timeout_seconds, seconds))
        with self.sending.stream("GET", address, timeout=timeout) as answer:
            pieces = []
            # The timeout applies to each piece, and a store may send one byte at a time.
            for piece in answer.iter_bytes():
                pieces.append(piece)
                allowed.check()
            return answer.status_code, b"".join(pieces)


@lru_cache(maxsize=4)
def _connected(bucket: ListedBucket) -> _ListingConnection:
    import ssl

    import botocore.session
    import httpx

    signing = make_client(
        bucket.settings,
        LISTING_LIMITS.connect_timeout_seconds,
        LISTING_LIMITS.read_timeout_seconds,
        signature_version="s3v4",
    )
    authorities = botocore.session.get_session().get_config_variable("ca_bundle")
    trusted = ssl.create_default_context(cafile=authorities) if authorities else True
    return _ListingConnection(
        bucket.name, signing, httpx.Client(verify=trusted, limits=httpx.Limits(max_connections=None))
    )


def _parsed(answer: ET.Element) -> Page:
    tag = answer.tag.rpartition("ListBucketResult")
    if not tag[1] or tag[2]:
        raise PagesEnd("the store's answer is not a listing")
    space = tag[0]
    key, size, modified = f"{space}Key", f"{space}Size", f"{space}LastModified"
    is_quoted = answer.findtext(f"{space}EncodingType") == "url"
    named: Callable[[str], str] = _unquoted if is_quoted else str
    try:
        objects = [
            (named(o.findtext(key) or ""), int(o.findtext(size) or 0), _time_ns(o.findtext(modified)))
            for o in answer.iterfind(f"{space}Contents")
        ]
    except ValueError as e:
        raise PagesEnd("the store's answer is not a listing") from e
    folders = [named(p.findtext(f"{space}Prefix") or "") for p in answer.iterfind(f"{space}CommonPrefixes")]
    if not is_quoted and any(_NO_TEXT in folder for folder in folders):
        raise PagesEnd("there is a folder whose name the store cannot express")
    has_more = answer.findtext(f"{space}IsTruncated") == "true"
    return Page(objects, folders, has_more, answer.findtext(f"{space}NextContinuationToken"))


def _unquoted(name: str) -> str:
    return unquote_plus(name, errors="surrogateescape") if "%" in name or "+" in name else name


def _time_ns(text: str | None) -> int:
    try:
        return nanoseconds(datetime.fromisoformat(text)) if text else 0
    except ValueError:
        return 0


def nanoseconds(when: datetime) -> int:
    """Nanoseconds since 1970, computed without floats: a limit is exact to the second."""
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * NANOSECONDS + since.microseconds * 1_000


def _code(body: bytes) -> str:
    """The name of the error, and no more of the answer: a store may repeat the request, and with it the signature."""
    import xml.etree.ElementTree as ET

    try:
        return "".join(ET.fromstring(body).findtext("Code", "").split())[:60]
    except ET.ParseError:
        return ""
