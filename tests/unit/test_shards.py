"""Which shard a batch is in, and what a table records of its dataset's id and shards."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core import read_token
from strandline.core.errors import TokenError
from strandline.core.sites.replication import SHARDS_MAX, Item, route, shard_ids, shard_span
from strandline.core.types import DatasetUuid, ItemKind, Seq, SeqRange, ShardId
from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
from strandline.iceberg.metadata.table_metadata import WapId

FIRST = st.integers(0, 10**6).map(ShardId)
SHARDS = st.integers(1, SHARDS_MAX)


@given(st.text(), FIRST, SHARDS)
def test_a_batch_is_in_one_shard_of_its_dataset_whoever_asks(batch_id: str, first: ShardId, shards: int) -> None:
    shard = route(batch_id, first, shards)
    assert shard in shard_ids(first, shards) and shard == route(batch_id, first, shards)
    assert shard - first == route(batch_id, ShardId(0), shards), "the place does not depend on other datasets"


def test_the_shard_of_a_batch_is_the_same_in_every_release() -> None:
    assert [route(name, ShardId(0), 8) for name in ("a", "b", "file-0", "ü", "\udc80")] == [7, 5, 1, 7, 5]


def test_batches_are_spread_evenly() -> None:
    found = Counter(route(f"batch-{n}", ShardId(10), 8) for n in range(8000))
    assert found.keys() == set(shard_ids(ShardId(10), 8)) and min(found.values()) > 800


def test_shards_are_shown_as_a_span() -> None:
    assert [shard_span(shard_ids(ShardId(3), n)) for n in (1, 4)] == ["3", "3 to 6"]


@given(st.uuids().map(str).map(DatasetUuid), FIRST, SHARDS)
def test_a_table_gives_back_the_id_and_the_shards_that_it_records(id: DatasetUuid, first: ShardId, shards: int) -> None:
    identity = DatasetIdentity(id, first, shards)
    assert DatasetIdentity.parse({"other": "x", **identity.to_properties()}, "table") == identity


@pytest.mark.parametrize("shards", ["", "0", "-1", "1025", "two", "٤", "9" * 30])
def test_a_table_without_or_with_damaged_properties_is_one_shard_under_its_own_uuid(shards: str) -> None:
    plain = DatasetIdentity(DatasetUuid("table"), None, 1)
    assert DatasetIdentity.parse({}, "table") == plain
    assert DatasetIdentity.parse({"strandline.first-shard": "7", "strandline.shards": shards}, "table") == plain


def test_tokens_from_before_there_were_ids_name_what_they_named() -> None:
    """The id of such a dataset is the uuid of its table, which its tokens have always named."""
    lake, table = "7c0b0d9e-1e5c-4a43-8a55-1f6d3a6c2b10", "9f3b7a52-0b1d-4c35-9c6e-4d2f7f1a8e21"
    given_out = (
        "sl1.-4caIlsiN2MwYjBkOWUtMWU1Yy00YTQzLThhNTUtMWY2ZDNhNmMyYjEwIiwiOWYzYjdhNTItMGIxZC00YzM1LTljNmUtNGQyZjdm"
        "MWE4ZTIxIiw0MV0"
    )
    dataset = DatasetIdentity.parse({}, table).uuid
    assert read_token.check(read_token.decode(given_out), lake=lake, dataset=dataset, name="d", sealed=Seq(41)) == 41
    with pytest.raises(TokenError, match="another dataset"):
        read_token.check(read_token.decode(given_out), lake=lake, dataset="another", name="d", sealed=Seq(41))


@pytest.mark.parametrize(
    "wrong",
    [
        (ItemKind.SEGMENT, 1, 5, None),
        (ItemKind.PURGE, 5, 5, ShardId(0)),
        (ItemKind.PURGE, 4, 5, None),
        (ItemKind.SEGMENT, 6, 5, ShardId(0)),
        (ItemKind.SEGMENT, 0, 5, ShardId(0)),
    ],
)
def test_an_item_that_cannot_be_is_refused(wrong: tuple[ItemKind, int, int, ShardId | None]) -> None:
    kind, lo, hi, shard = wrong
    with pytest.raises(ValueError, match=r"range|shard|number"):
        Item(kind, Seq(lo), Seq(hi), shard, None, None, None)


@given(st.text(min_size=1), st.one_of(st.none(), FIRST), st.one_of(st.none(), st.just("digest")))
def test_a_shard_that_a_writer_named_is_in_the_snapshot_of_its_batch(
    batch_id: str, shard: ShardId | None, digest: str | None
) -> None:
    wap = WapId("lake", SeqRange(Seq(7), Seq(9)), digest, batch_id, shard)
    assert WapId.parse(str(wap)) == wap
    routed = WapId("lake", SeqRange(Seq(7), Seq(9)), digest, batch_id)
    assert str(routed) == f"strandline:1:lake:7-9:{digest or ''}:{batch_id}", "as older versions wrote it"
