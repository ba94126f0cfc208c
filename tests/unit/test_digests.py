"""What two digests tell: the same bytes, other rows, or nothing."""

from __future__ import annotations

import pytest

from strandline.deliver.send.digests import bare, made_by, prove_different, same_bytes

OLD, NEW = "jsonl-4.1+zstd-1.5.6", "jsonl-4.1+zstd-1.5.7"


@pytest.mark.parametrize(
    ("one", "other", "same", "apart"),
    [
        ("sha256:a", "sha256:a", True, False),
        ("sha256:a", "sha256:b", False, True),
        (made_by("sha256:a", OLD), made_by("sha256:a", NEW), True, False),
        (made_by("sha256:a", OLD), made_by("sha256:b", OLD), False, True),
        (made_by("sha256:a", OLD), made_by("sha256:b", NEW), False, False),
        (made_by("sha256:a", OLD), "sha256:b", False, False),
    ],
)
def test_digests_of_different_encoders_tell_nothing_unless_they_are_the_same(
    one: str, other: str, same: bool, apart: bool
) -> None:
    assert (same_bytes(one, other), same_bytes(other, one)) == (same, same)
    assert (prove_different(one, other), prove_different(other, one)) == (apart, apart)


def test_the_digest_itself_is_found_again() -> None:
    assert bare(made_by("sha256:a", OLD)) == bare("sha256:a") == "sha256:a"
