"""What answers mean, as a function over values; URLs, tokens and waits."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from strandline.core import forward_protocol
from strandline.core.errors import ConfigError, UsageError
from strandline.core.secrets import read_secret
from strandline.core.types import Seq, SeqRange
from strandline.deliver.plan.chunking import retry_wait_seconds
from strandline.deliver.sink import Conflict, Landed, Outcome, Refused, SinkContext, TryLater, Unknown
from strandline.deliver.sink_kinds import check_options, find_kind, kind_names, resolve
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.forward.body import RequestBody
from strandline.deliver.sinks.forward.http import BearerToken, HttpAnswer, parse_place
from strandline.deliver.sinks.forward.outcome import outcome_of, parse_success, retry_after_seconds
from strandline.deliver.sinks.forward.sink import KIND, check_url

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
BODY = RequestBody(b"12345", 5, "sha256:aa", "jsonl-1")
ANY_2XX = parse_success({"success_status": "2xx"})


def rng(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def outcome(status: int, fields: dict[str, Any] | bytes = b"", *, ours: bool = True, **headers: str) -> Outcome:
    content = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    if ours:
        told["strandline-receiver"] = "1"
    answer = HttpAnswer(status, told, content)
    success = None if ours else ANY_2XX
    return outcome_of(answer, rng(11, 15), BODY, success=success, wait_seconds_max=300, now=NOW)


ACCEPTED = {"outcome": "accepted", "rows": 5, "digest": "sha256:aa", "repeat": False}


def test_a_receiver_that_accepted_these_very_bytes_has_them() -> None:
    assert outcome(202, ACCEPTED) == Landed(5, "sha256:aa;jsonl-1", 5)
    assert outcome(202, ACCEPTED | {"repeat": True}) == Landed(5, "sha256:aa;jsonl-1", 5, repeat=True)


def test_a_repeat_is_what_landed_first() -> None:
    first = {"rows": 9, "digest": "sha256:bb", "repeat": True}
    assert outcome(202, ACCEPTED | first) == Landed(9, "sha256:bb", 0, repeat=True)
    covered = {"rows": None, "digest": None, "repeat": True, "held": [[1, 20]]}
    assert outcome(202, ACCEPTED | covered) == Landed(5, "", 0, repeat=True)


@pytest.mark.parametrize(
    "fields", [b"", b"{", b"[]", {"outcome": "busy"}, ACCEPTED | {"rows": 4}, ACCEPTED | {"digest": "sha256:bb"}]
)
def test_a_yes_that_is_not_about_these_bytes_is_not_believed(fields: Any) -> None:
    assert isinstance(outcome(202, fields), Unknown)


@pytest.mark.parametrize("status", [200, 202, 204, 400, 404, 409, 422, 500, 503])
def test_whatever_somebody_between_us_and_the_receiver_says_is_tried_again(status: int) -> None:
    answer = HttpAnswer(status, {"retry-after": "7"}, b"<html>please log in</html>")
    found = outcome_of(answer, rng(1, 5), BODY, success=None, wait_seconds_max=300, now=NOW)
    assert isinstance(found, TryLater) and "lacks the header" in found.why and found.wait_seconds == 7


def test_a_proxy_that_takes_no_large_bodies_is_given_smaller_ones() -> None:
    found = outcome_of(HttpAnswer(413, {}), rng(1, 5), BODY, success=None, wait_seconds_max=300, now=NOW)
    assert isinstance(found, Refused)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_yes_of_a_server_of_another_make_is_one(status: int) -> None:
    assert outcome(status, b"ok", ours=False) == Landed(5, "sha256:aa;jsonl-1", 5)


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ({"success_status": "202"}, [(202, {}, b"", True), (200, {}, b"", False), (204, {}, b"", False)]),
        ({"success_status": "200,409"}, [(200, {}, b"", True), (409, {}, b"", True), (201, {}, b"", False)]),
        (
            {"success_status": "2xx", "success_header": "X-Stored"},
            [(200, {"x-stored": ""}, b"", True), (200, {}, b"", False)],
        ),
        (
            {"success_status": "2xx", "success_header": "X-Stored = all"},
            [(200, {"x-stored": " all "}, b"", True), (200, {"x-stored": "some"}, b"", False)],
        ),
        (
            {"success_status": "2xx", "success_json": "result.state=stored"},
            [
                (200, {}, b'{"result":{"state":"stored"}}', True),
                (200, {}, b'{"result":{"state":"queued"}}', False),
                (200, {}, b'{"result":"stored"}', False),
                (200, {}, b"<html>back soon</html>", False),
                (200, {}, b'["stored"]', False),
            ],
        ),
        (
            {"success_status": "2xx", "success_json": "ok"},
            [(200, {}, b'{"ok":true}', True), (200, {}, b'{"ok":false}', False), (200, {}, b'{"ok":null}', False)],
        ),
        ({"success_status": "2xx", "success_json": "errors=0"}, [(200, {}, b'{"errors":0}', True)]),
    ],
)
def test_what_success_looks_like_is_what_the_options_say(
    options: dict[str, str], answers: list[tuple[int, dict[str, str], bytes, bool]]
) -> None:
    success = parse_success(options)
    for status, headers, content, is_success in answers:
        answer = HttpAnswer(status, headers, content)
        found = outcome_of(answer, rng(1, 5), BODY, success=success, wait_seconds_max=300, now=NOW)
        assert isinstance(found, Landed if is_success else Unknown), (answer, found)


@pytest.mark.parametrize(
    "options",
    [
        {"success_status": "ok"},
        {"success_status": "302"},
        {"success_status": "200;201"},
        {"success_header": "X-Stored"},
        {"success_status": "2xx", "success_header": "no name=1"},
        {"success_status": "2xx", "success_json": "a..b=1"},
    ],
)
def test_options_that_say_nothing_that_can_be_checked_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        parse_success(options)


@pytest.mark.parametrize(
    ("status", "fields", "words"),
    [
        (400, {"outcome": "bad_body", "line": 3, "why": "x is not a number"}, "line 3: x is not a number"),
        (413, {"outcome": "too_large", "why": "more than 16 MiB", "limit": 1}, "more than 16 MiB"),
        (422, {"outcome": "other_body", "why": "another body", "digest": "sha256:bb"}, "another body"),
    ],
)
def test_rows_that_a_receiver_does_not_take_are_refused_in_its_words(
    status: int, fields: dict[str, Any], words: str
) -> None:
    found = outcome(status, fields)
    assert isinstance(found, Refused) and words in found.why and str(status) in found.why


@pytest.mark.parametrize("status", [400, 413, 422])
def test_any_server_and_any_proxy_may_refuse_rows(status: int) -> None:
    assert isinstance(outcome(status, b"no", ours=False), Refused)


@pytest.mark.parametrize("said", ["bad_digest", "bad_request"])
def test_what_was_damaged_on_the_way_is_no_fault_of_the_rows(said: str) -> None:
    assert isinstance(outcome(400, {"outcome": said, "why": "damaged"}), TryLater)


def test_a_conflict_says_what_is_held_and_any_other_409_waits() -> None:
    assert outcome(409, {"outcome": "conflict", "held": [[14, 20], [1, 11]]}) == Conflict((rng(1, 11), rng(14, 20)))
    for fields in ({"outcome": "in_flight"}, {"outcome": "conflict", "held": []}, {"outcome": "conflict", "held": "x"}):
        assert isinstance(outcome(409, fields), TryLater)
    assert isinstance(outcome(409, {"outcome": "conflict", "held": [[1, 11]]}, ours=False), TryLater)
    assert outcome(409, {"outcome": "in_flight"}, retry_after="2") == TryLater("409 Conflict", 2.0)


@pytest.mark.parametrize(
    "status",
    [301, 302, 307, 308, 401, 402, 403, 404, 405, 408, 410, 415, 421, 425, 429, 451, 500, 501, 502, 503, 504, 599],
)
@pytest.mark.parametrize("ours", [True, False])
def test_everything_else_is_tried_again_and_quarantines_nothing(status: int, ours: bool) -> None:
    found = outcome(status, b"", ours=ours, retry_after="7")
    assert isinstance(found, TryLater) and str(status) in found.why and found.wait_seconds == 7


def test_a_redirect_is_told_as_one() -> None:
    found = outcome(308, b"", ours=False, location="http://elsewhere/?key=hidden")
    assert isinstance(found, TryLater) and "redirects are not followed" in found.why and "hidden" not in found.why


def test_what_a_stranger_says_is_told_in_one_short_line() -> None:
    found = outcome(500, b"\x00\x1b[31m<h1>\n broken \xff" + b"x" * 10_000, ours=False)
    assert isinstance(found, TryLater) and len(found.why) < 400 and found.why.isprintable()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5), (" 120 ", 120), ("301", 300), ("9" * 400, 300),
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30),
        ("Sunday, 15-Nov-26 12:00:30 GMT", 30),
        ("Sun Nov 15 12:00:30 2026", 30),
        ("Mon, 16 Nov 2026 12:00:00 GMT", 300),
        ("0", None), ("-5", None), ("+5", None), ("1.5", None), ("", None), ("soon", None), ("0x10", None), ("٣", None),
        ("Sun, 15 Nov 2026 12:00:00 GMT", None), ("Sun, 15 Nov 2020 12:00:00 GMT", None), ("Sun, 99 Nov 2026", None),
        ("Sun, 15 Nov 99999 12:00:00 GMT", None), ("5, 10", None),
    ],
)  # fmt: skip
def test_a_wait_is_bounded_and_nonsense_is_none(text: str, seconds: float | None) -> None:
    assert retry_after_seconds({"retry-after": text}, NOW, 300) == seconds
    assert retry_after_seconds({}, NOW, 300) is None


def test_a_date_is_measured_by_the_clock_of_who_wrote_it() -> None:
    said = {"retry-after": "Sun, 15 Nov 2026 15:00:30 GMT", "date": "Sun, 15 Nov 2026 15:00:10 GMT"}
    assert retry_after_seconds(said, NOW, 300) == 20


def test_without_a_wait_that_makes_sense_the_ladder_counts() -> None:
    assert retry_wait_seconds(3, retry_after_seconds({"retry-after": "0"}, NOW, 300), 60, 1.0) == 8


# --- where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "destination"),
    [
        ("http://Host.Example:80/v1/rows", "http://host.example/v1/rows"),
        ("https://host:443/rows/", "https://host/rows"),
        ("https://host:8443/rows?key=hidden", "https://host:8443/rows"),
        ("http://[2001:DB8::1]:8420/rows", "http://[2001:db8::1]:8420/rows"),
        ("http://host", "http://host"),
        ("http://münchen.example/rows", "http://xn--mnchen-3ya.example/rows"),
    ],
)
def test_two_spellings_of_a_place_are_one(url: str, destination: str) -> None:
    place = parse_place(url)
    assert place.destination == destination and "hidden" not in repr(place)
    assert names.overlaps(destination, place.destination)


def test_a_query_is_never_stored() -> None:
    with pytest.raises(UsageError, match="query") as refused:
        check_url("http://host/rows?key=hidden")
    assert "hidden" not in refused.value.message and "env:NAME" in (refused.value.hint or "")
    check_url("http://host/rows")
    check_url("env:WEB_URL")


def test_the_query_goes_with_every_request_and_nowhere_else() -> None:
    place = parse_place("http://host/rows/?key=hidden")
    assert place.url().target == b"/rows/?key=hidden"
    assert place.url("held").target == b"/rows/held?key=hidden"


@pytest.mark.parametrize(
    "url",
    ["", "host/rows", "ftp://host/x", "file:///x", "http://", "http:///x", "http://u:secret@host/", "http://secret@host/",
     "http://host/#secret", "http://host:0/", "http://host:99999/", "http://[::1/", "http://ho st/"],
)  # fmt: skip
def test_a_url_that_cannot_be_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_options(KIND, {"url": url})
    assert "secret" not in f"{refused.value} {refused.value.hint}"
    with pytest.raises(UsageError):
        KIND.open(SinkContext(Path(), "d", 1, {"url": url}))


def test_two_urls_are_one_destination_only_if_they_are_the_same() -> None:
    rows = "http://host/v1/datasets/a/rows"
    assert names.overlaps(rows, rows)
    for other in ("http://host/v1/datasets/b/rows", "http://host/v1/datasets/a", f"{rows}/more", "https://host/v1"):
        assert not names.overlaps(rows, other) and not names.overlaps(other, rows)
    assert not names.overlaps(rows, "file:///host/v1/datasets/a/rows")


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_the_kind_is_known_and_takes_a_token_only_by_its_place() -> None:
    assert "forward" in kind_names() and find_kind("forward") is KIND
    with pytest.raises(UsageError, match="secret") as refused:
        check_options(KIND, {"url": "http://host", "token": "sl_abc"})
    assert "sl_abc" not in f"{refused.value} {refused.value.hint}"
    for where in ("env:NAME", "file:/run/secrets/token"):
        check_options(KIND, {"url": "http://host", "token": where})
    for nowhere in ("env:", "file:"):
        with pytest.raises(UsageError, match="secret"):
            check_options(KIND, {"url": "http://host", "token": nowhere})


def test_a_secret_is_read_from_its_place_without_the_end_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("sl_from_a_file\n")
    monkeypatch.setenv("FORWARD_TOKEN", "sl_from_the_environment")
    assert resolve(KIND, {"url": "http://h", "token": f"file:{tmp_path}/token"})["token"] == "sl_from_a_file"
    assert resolve(KIND, {"url": "http://h", "token": "env:FORWARD_TOKEN"})["token"] == "sl_from_the_environment"


def test_a_path_that_begins_with_file_is_a_secret_only_where_one_is_meant(tmp_path: Path) -> None:
    assert resolve(find_kind("files"), {"path": "file:/x", "format": "jsonl"})["path"] == "file:/x"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe", b"x" * 70_000])
def test_a_file_that_holds_no_secret_is_told_by_its_name_and_not_by_its_content(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="token") as refused:
        read_secret(f"file:{path}")
    assert "xxx" not in str(refused.value)


def test_a_relative_path_of_a_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="absolute"):
        read_secret("file:token")


def test_a_token_is_read_again_only_if_it_is_another(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("sl_first")
    token = BearerToken("sl_first", f"file:{path}")
    assert token.read_again() is None and BearerToken("sl_first").read_again() is None
    path.write_text("sl_second")
    assert token.read_again() == BearerToken("sl_second", f"file:{path}")
    path.unlink()
    assert token.read_again() is None


@pytest.mark.parametrize("value", ["", "two words", "line\nend", "ünï", "nul\0"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(UsageError) as refused:
        BearerToken(value)
    assert not value or value not in str(refused.value)


def test_nothing_that_can_be_printed_holds_the_token() -> None:
    context = SinkContext(Path(), "d", 1, {"url": "https://host.example/rows?key=hidden", "token": "sl_hidden"})
    sink = KIND.open(context)
    for thing in (
        context,
        sink,
        sink.inspector(),
        BearerToken("sl_hidden"),
        pickle.loads(pickle.dumps(sink.inspector())),
    ):
        assert "hidden" not in repr(thing)


def test_chunks_of_a_forward_sink_are_small_unless_somebody_says_otherwise() -> None:
    assert dict(KIND.defaults) == {"chunk_rows_max": "5000", "chunk_bytes_max": "4194304"}


def test_names_of_any_characters_travel_in_headers_and_come_back() -> None:
    lane = forward_protocol.LaneName("lake", "instance", 2, "bücher.日本 %41\n", "k=%C3%A9")
    headers = forward_protocol.identity_headers(forward_protocol.RangeIdentity(lane, rng(3, 9)))
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert forward_protocol.parse_identity(
        {k.lower(): v for k, v in headers.items()}
    ) == forward_protocol.RangeIdentity(lane, rng(3, 9))
    assert headers[forward_protocol.KEY] == forward_protocol.chunk_key(forward_protocol.RangeIdentity(lane, rng(3, 9)))
