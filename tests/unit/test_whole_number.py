"""Numbers in text that others wrote: table properties, headers, options."""

from __future__ import annotations

import pytest

from strandline.core.errors import TokenError
from strandline.core.read_token import decode
from strandline.core.text.whole_number import whole_number
from strandline.http.content_length import exceeds
from strandline.iceberg.metadata.table_metadata import RecordedPurge, WapId

NO_NUMBERS = ["", "²", "٣", "-1", "+1", "1.5", "1_000", " 1", "9" * 20, "9" * 5000]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_of_ours_is_none_and_no_error(text: str) -> None:
    assert whole_number(text) is None
    assert RecordedPurge.parse(("strandline.purged.1-2", text)) is None
    assert WapId.parse(f"strandline:1:lake:1-2@{text}::batch") == WapId.parse("strandline:1:lake:1-2::batch")


def test_zeros_in_front_do_not_count() -> None:
    assert [whole_number(text) for text in ("0", "007", "0" * 5000 + "7", "9" * 19)] == [0, 7, 7, 10**19 - 1]


def test_a_length_of_more_digits_than_a_number_may_have_is_more_than_any_bound() -> None:
    assert exceeds("9" * 5000, 10) and exceeds("11", 10)
    assert not any(exceeds(said, 10) for said in (None, "", "10", "²", "-5"))


def test_a_token_of_brackets_within_brackets_is_damaged() -> None:
    import base64
    import zlib

    body = b"[" * 9000
    text = base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).decode().rstrip("=")
    with pytest.raises(TokenError, match="damaged"):
        decode(f"sl1.{text}")
