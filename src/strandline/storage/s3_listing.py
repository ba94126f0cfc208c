"""The listing of a large bucket, a page at a time and within a time limit.

Requests are signed by botocore, and sent and read here: botocore takes seven times as long for a page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from strandline.core.settings import LakeConfig
from strandline.storage.s3_client import make_client
from strandline.storage.s3_settings import LISTING_LIMITS, S3Settings, split_url

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

    import httpx

NANOSECONDS = 1_000_000_000
CAME_MEANWHILE_SECONDS = 3_600
"""What is younger and was not listed may have come while it was listed."""
CUT_SHORT = "the store ended the listing before its end"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TEXT = "\ufffd"
"""What takes the place of a character that XML has no way to write, where a store does not escape names."""
_BUSY = 429
_BROKEN = 500

Check = Callable[[], None]
Found = tuple[str, int, int]
"""Key, size, and time in nanoseconds: 0 where it is not known."""


class PagesEnd(Exception):
    """No further page can be had. What came until then is right, and not all there is."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long somebody may take."""

    seconds: float
    until: float
    """By the monotonic clock."""
    ask: Check
    """May raise, and ends it."""

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
    objects: list[Found]
    folders: list[str]
    """Keys that end with a slash; where one level was asked for."""
    has_more: bool
    token: str | None

    @property
    def last(self) -> str:
        """Nothing of it comes after this. Behind a folder is everything that begins with its name and a slash, for
        which a zero is the next."""
        return max([*(f"{folder[:-1]}0" for folder in self.folders), *(found[0] for found in self.objects)], default="")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Can be sent to another process: it keeps no connection."""

    name: str
    settings: S3Settings

    @classmethod
    def of(cls, config: LakeConfig) -> Bucket:
        warehouse = config.settings.warehouse
        return cls(split_url(warehouse.url)[0], S3Settings.of_warehouse(warehouse))

    def key_of(self, path: str) -> str | None:
        """None if it lies elsewhere."""
        start = f"s3://{self.name}/"
        return path[len(start) :] if path.startswith(start) else None

    def pages(self, prefix: str, *, is_level: bool, allowed: Allowance) -> Iterator[Page]:
        """What begins with the prefix; of one level also the folders in it, and not what is below them. Ends with
        `PagesEnd` where that is not all."""
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
        if last and self._goes_on(prefix, last, allowed):
            raise PagesEnd(CUT_SHORT)

    def _goes_on(self, prefix: str, last: str, allowed: Allowance) -> bool:
        """Whether something comes after what was listed last, which the store called the end."""
        old_ns = nanoseconds(datetime.now(UTC) - timedelta(seconds=CAME_MEANWHILE_SECONDS))
        more: dict[str, str] | None = {"StartAfter": last}
        while more is not None:
            page = self._page({"Prefix": prefix} | more, allowed)
            if any(key > last and modified_ns < old_ns for key, _, modified_ns in page.objects):
                return True
            more = {"ContinuationToken": page.token} if page.has_more and page.token else None
        return False

    def _page(self, asked: Mapping[str, str], allowed: Allowance) -> Page:
        import xml.etree.ElementTree as ET

        import httpx
        from botocore.exceptions import BotoCoreError

        why = ""
        for attempt in range(LISTING_LIMITS.attempts_max):
            if attempt:
                time.sleep(min(LISTING_LIMITS.first_pause_seconds * 2**attempt, allowed.seconds_left))
            allowed.check()
            try:
                status, body = _connected(self).get(asked, allowed)
                if status == 200:
                    return _parsed(ET.fromstring(body))
                why = f"the store refused ({status} {_code(body)})"
                if status < _BROKEN and status != _BUSY:
                    break
            except (httpx.HTTPError, ET.ParseError) as e:
                # Never what it says: the address is signed.
                why = f"the store cannot be reached, or its answer not be read ({type(e).__name__})"
            except (BotoCoreError, httpx.InvalidURL, ValueError) as e:
                raise PagesEnd(f"no request can be made ({type(e).__name__})") from None
        allowed.check()
        raise PagesEnd(why)


@dataclass(frozen=True, slots=True)
class _Connection:
    bucket: str
    signing: Any
    sending: httpx.Client

    def get(self, asked: Mapping[str, str], allowed: Allowance) -> tuple[int, bytes]:
        import httpx

        parameters = {"Bucket": self.bucket, "EncodingType": "url", **asked}
        address = self.signing.generate_presigned_url("list_objects_v2", Params=parameters)
        seconds = max(min(LISTING_LIMITS.read_timeout_seconds, allowed.seconds_left), 0.01)
        timeout = httpx.Timeout(seconds, connect=min(LISTING_LIMITS.connect_timeout_seconds, seconds))
        with self.sending.stream("GET", address, timeout=timeout) as answer:
            pieces = []
            # A time limit of a request is one of each of its pieces, and a store may send a byte at a time.
            for piece in answer.iter_bytes():
                pieces.append(piece)
                allowed.check()
            return answer.status_code, b"".join(pieces)


@lru_cache(maxsize=4)
def _connected(bucket: Bucket) -> _Connection:
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
    return _Connection(bucket.name, signing, httpx.Client(verify=trusted, limits=httpx.Limits(max_connections=None)))


def _parsed(answer: ET.Element) -> Page:
    tag = answer.tag.rpartition("ListBucketResult")
    if not tag[1] or tag[2]:
        raise PagesEnd("the store's answer is no listing")
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
        raise PagesEnd("the store's answer is no listing") from e
    folders = [named(p.findtext(f"{space}Prefix") or "") for p in answer.iterfind(f"{space}CommonPrefixes")]
    if not is_quoted and any(_NO_TEXT in folder for folder in folders):
        raise PagesEnd("there is a folder whose name the store cannot tell")
    has_more = answer.findtext(f"{space}IsTruncated") == "true"
    return Page(objects, folders, has_more, answer.findtext(f"{space}NextContinuationToken"))


def _unquoted(name: str) -> str:
    return unquote_plus(name, errors="surrogateescape") if "%" in name or "+" in name else name


def _time_ns(told: str | None) -> int:
    try:
        return nanoseconds(datetime.fromisoformat(told)) if told else 0
    except ValueError:
        return 0


def nanoseconds(when: datetime) -> int:
    """Without floats: a limit is exact to the second."""
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * NANOSECONDS + since.microseconds * 1_000


def _code(body: bytes) -> str:
    """What an error is called. Only this: a store may repeat the request, and with it the signature."""
    import xml.etree.ElementTree as ET

    try:
        return "".join(ET.fromstring(body).findtext("Code", "").split())[:60]
    except ET.ParseError:
        return ""
