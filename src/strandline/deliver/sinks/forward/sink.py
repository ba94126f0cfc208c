"""The kind `forward`: each chunk is the body of one POST, with its range, its key and its digest in the headers.

A Strandline receiver records the ranges and can be asked for them. Any other server that honours `Idempotency-Key`
works, too; it cannot be asked, so its silence proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from strandline.core.delivery_types import PeerKind
from strandline.core.errors import SchemaError, UsageError
from strandline.core.settings.lake_config import ForwardSettings
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import Address, Claim, Claimed, Held, Option, Rehearsal, SinkContext, SinkKind
from strandline.deliver.sinks.forward.address import literal, parse_allow, refusal
from strandline.deliver.sinks.forward.body import choose_body_format, rehearse
from strandline.deliver.sinks.forward.connections import ConnectionRules
from strandline.deliver.sinks.forward.http import BearerToken, Conversation, Url, parse_place
from strandline.deliver.sinks.forward.outcome import (
    FIELD,
    HEADER,
    STATUS,
    parse_field,
    parse_header,
    parse_statuses,
    parse_success,
)
from strandline.deliver.sinks.forward.peer import ForwardInspector, Peer
from strandline.deliver.sinks.forward.send import ForwardSender
from strandline.iceberg.schema.columns import Column, ColumnType, ListOf, MapOf, Primitive, Struct

STOP, SPLIT = "stop", "split"


def _read_ca(path: Path) -> str:
    """The certificates that the option `ca` names: read on the driver, sent to the executors."""
    try:
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"option ca: {path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if "BEGIN CERTIFICATE" not in text:
        raise UsageError(f"option ca: {path} holds no certificate", hint="A file in PEM.")
    return text


class ForwardSink:
    stores_watermarks = False

    def __init__(self, context: SinkContext) -> None:
        """Raises UsageError."""
        options, settings = context.options, context.settings
        if not options.get("url"):
            raise UsageError("option url is missing", hint="--option url=http://HOST:PORT/v1/datasets/DATASET/rows")
        self._context = context
        self._place = parse_place(options["url"])
        self._rules = _connection_rules(settings, self._place)
        ca = options.get("ca")
        if ca and self._place.scheme != "https":
            raise UsageError("option ca needs a url that begins with https://")
        self._ca = (context.home / ca).resolve() if ca else None
        self._token = BearerToken(options.get("token"), context.given.get("token"))
        self._how = choose_body_format(options.get("format") or "jsonl", options.get("compression") or "zstd")
        self._success = parse_success(options)
        self._peer: Peer | None = None
        self.form = self._how.form
        self.destination = self._place.destination
        self.splits_in_doubt = options.get("in_doubt") == SPLIT

    def __repr__(self) -> str:
        return f"ForwardSink({self.destination})"

    def prepare(self, columns: Sequence[Column]) -> None:
        """The peer checks whether the columns fit. Raises SchemaError for types that JSON cannot express."""
        if self._how.name != "jsonl":
            return
        for column in columns:
            if _has_nested_keys(column.type):
                raise SchemaError(
                    f"column {column.name} has a map whose keys are not plain values: JSON has no form for it",
                    hint="Forward it as Arrow (--option format=arrow), or leave it out (--option columns=…).",
                )

    def peer_kind(self) -> PeerKind:
        return PeerKind.RECEIVER if self._asked.is_receiver else PeerKind.OTHER

    def claimed(self) -> Claimed | None:
        peer = self._asked
        return peer.claimed(self._context.lake, self._context.dataset) if peer.is_receiver else None

    def claim(self, claim: Claim, generation: int) -> Claimed:
        peer = self._asked
        return peer.claim(claim, generation) if peer.is_receiver else Claimed(claim, generation)

    def fence(self, token: str) -> None:
        """Nothing to do: what an older deliverer still sends carries its range, and is a repeat or a conflict."""

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        if not lanes:
            return []
        peer = self._asked
        return peer.held(lanes) if peer.is_receiver else [Held(None, (), known=False) for _ in lanes]

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        """Nothing to do: ranges are kept forever."""

    def sender(self, token: str) -> ForwardSender:
        success = None if self._asked.is_receiver else self._success
        wait_seconds_max = self._context.settings.retry_after_seconds_max
        return ForwardSender(self._conversation(), self._how, success, self._context.term, wait_seconds_max)

    def inspector(self) -> ForwardInspector:
        return ForwardInspector(self._new_peer())

    def rehearsal(self, columns: Sequence[str]) -> Rehearsal:
        return Rehearsal(partial(rehearse, self._how))

    def comparison(self, columns: Sequence[str]) -> None:
        """None: the body that was sent is not kept, only its digest."""

    def name_of(self, address: Address, rows: SeqRange) -> str:
        return f"{self.destination} {address.partition} {rows}" if address.partition else f"{self.destination} {rows}"

    def close(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _conversation(self) -> Conversation:
        """Uses the token that worked last: an executor may be unable to read it again."""
        token = self._token if self._peer is None else self._peer.token
        ca = None if self._ca is None else _read_ca(self._ca)
        return Conversation(self._place, token, replace(self._rules, ca=ca))

    @property
    def _asked(self) -> Peer:
        if self._peer is None:
            self._peer = self._new_peer()
        return self._peer

    def _new_peer(self) -> Peer:
        was_receiver = self._context.peer is PeerKind.RECEIVER
        return Peer(self._conversation(), was_receiver=was_receiver, may_be_other=self._success is not None)


def _has_nested_keys(kind: ColumnType) -> bool:
    match kind:
        case MapOf(key, value):
            return not isinstance(key, Primitive) or _has_nested_keys(value)
        case ListOf(element):
            return _has_nested_keys(element)
        case Struct(fields):
            return any(_has_nested_keys(f.type) for f in fields)
    return False


def _check_in_doubt(given: str) -> None:
    if given not in (STOP, SPLIT):
        raise UsageError(f"option in_doubt is `{STOP}` or `{SPLIT}`, and not {given!r}")


def _connection_rules(settings: ForwardSettings, place: Url) -> ConnectionRules:
    allow, address = parse_allow(settings.allow), literal(place.host)
    if address is not None and not allow.permits(place.host, address):
        refused = refusal(place.host, [address])
        raise UsageError(f"option url: {refused.message}", hint=refused.hint)
    return ConnectionRules(allow, settings.connect_seconds_max, settings.answer_seconds_max)


def check_url(given: str) -> None:
    """Checks the option as given, before it is stored. Raises UsageError."""
    if not given.startswith("env:") and parse_place(given).query:
        raise UsageError(
            "option url has a query (?…), where people put keys, and would be stored and shown with it",
            hint="Put the whole URL into an environment variable, and name that: --option url=env:NAME.",
        )


KIND = SinkKind(
    options=(
        Option(
            "url",
            "Where rows are posted: `http://HOST:PORT/v1/datasets/DATASET/rows` of a receiver, or another server's.",
            required=True,
            check=check_url,
        ),
        Option("token", "Sent as `Authorization: Bearer`: `env:NAME` or `file:PATH`.", secret=True, pinned=False),
        Option("format", "`jsonl` or `arrow`.", default="jsonl"),
        Option("compression", "`zstd`, `gzip` or `none`.", default="zstd"),
        Option(
            "in_doubt",
            "For servers that keep no ranges: a chunk that is refused although an earlier attempt may have landed. "
            "`stop`, or `split` if the server checks the key before it checks the rows.",
            default=STOP,
            check=_check_in_doubt,
            pinned=False,
        ),
        Option(
            STATUS,
            "For a server that is no Strandline receiver: statuses that mean that it has stored the rows, such as "
            "`200,202` or `2xx`. Without, only a receiver is sent to.",
            check=parse_statuses,
            pinned=False,
        ),
        Option(
            HEADER,
            "For such a server: a header that an answer must have as well, `NAME` or `NAME=VALUE`.",
            check=parse_header,
            pinned=False,
        ),
        Option(
            FIELD,
            "For such a server: a field that an answer in JSON must have as well, `FIELD` or `FIELD=VALUE`; dots lead "
            "into objects (`result.state=stored`).",
            check=parse_field,
            pinned=False,
        ),
        Option("ca", "A PEM file: certificates to trust in place of the system's.", pinned=False),
    ),
    open=ForwardSink,
    defaults={"chunk_rows_max": "5000", "chunk_bytes_max": str(4 << 20)},
)
