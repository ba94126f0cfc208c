"""The JSON document of the bodies in a batch, for HTTP: writes and parses it. Pure. Its receipt is the one that the
warehouse has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strandline.core.errors import FailedError
from strandline.core.forward_protocol import KeyIdentity
from strandline.core.types import Seq, SeqRange
from strandline.ledger.receive.announced_bodies import AnnouncedBatch, AnnouncedClaim
from strandline.ledger.receive.receipts import Receipt, TokenFingerprint, parse_receipt

_CLAIM = ("lake", "dataset", "instance", "table_uuid", "generation", "term")


def to_document(announced: AnnouncedBatch | None) -> dict[str, Any]:
    if announced is None:
        return {"batch": None}
    claims = [
        {name: getattr(c, name) for name in _CLAIM}
        | {"token": None if c.owner is None else [c.owner.name, c.owner.fingerprint]}
        for c in announced.claims
    ]
    receipt = json.loads(announced.receipt.to_bytes())
    return {"batch": {"lo": announced.numbers.lo, "hi": announced.numbers.hi, "receipt": receipt, "claims": claims}}


def parse_bodies(document: Mapping[str, Any]) -> AnnouncedBatch | None:
    """Raises FailedError for a document that a leader of this version does not send."""
    try:
        batch = document["batch"]
        if batch is None:
            return None
        receipt = parse_receipt(json.dumps(batch["receipt"]).encode())
        if receipt is None:
            raise ValueError("its receipt has another version")
        _check_types(receipt)
        numbers = SeqRange(Seq(int(batch["lo"])), Seq(int(batch["hi"])))
        return AnnouncedBatch(numbers, receipt, tuple(map(_claim, batch["claims"])))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise FailedError(
            f"what the leader says of the bodies in a batch cannot be read ({type(e).__name__}: {e})",
            hint="Check that leader and follower have the same version of Strandline.",
        ) from e


def _check_types(receipt: Receipt) -> None:
    """Raises ValueError for a receipt that the ledger cannot store, such as one with text where a number belongs."""
    texts: list[object] = [receipt.batch_id]
    numbers: list[object] = []
    for body in receipt.bodies:
        note = body.note
        texts += [body.spool, note.digest, *(() if note.owner is None else (note.owner.name, note.owner.fingerprint))]
        numbers += [note.rows, note.size, body.spool_bytes, body.place]
        if isinstance(note.identity, KeyIdentity):
            texts.append(note.identity.key)
        else:
            lane, rows = note.identity.lane, note.identity.rows
            texts += [lane.lake, lane.instance, lane.dataset, lane.partition]
            numbers += [lane.generation, rows.lo, rows.hi]
        if body.received_at.tzinfo is None:
            raise ValueError("a time without a time zone")
    if not all(isinstance(t, str) for t in texts) or not all(type(n) is int and abs(n) < 2**63 for n in numbers):
        raise ValueError("a value in its receipt has the wrong type")


def _claim(document: Mapping[str, Any]) -> AnnouncedClaim:
    token = document["token"]
    if token is not None:
        name, fingerprint = token
        token = TokenFingerprint(str(name), str(fingerprint))
    return AnnouncedClaim(
        str(document["lake"]),
        str(document["dataset"]),
        str(document["instance"]),
        str(document["table_uuid"]),
        int(document["generation"]),
        int(document["term"]),
        token,
    )
