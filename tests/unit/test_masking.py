"""What was read as a secret, and what stands where a password does, is in no text that leaves the process."""

from __future__ import annotations

import json
import logging
import re
import string
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.cli.log_lines import _LogFormatter, _StrayLines
from strandline.core.errors import FailedError, UsageError
from strandline.core.secrets import read_secret, resolve_catalog_options, resolve_key, resolve_secret
from strandline.core.text import masking
from strandline.core.text.masking import masked, masked_within
from strandline.deliver.sink import Refused, TryLater, Unknown
from strandline.serve import problems


def test_an_error_repeats_no_secret_that_was_read_however_it_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_noted", {})
    monkeypatch.setenv("A_CREDENTIAL", "client-7:p&ss word/9")
    monkeypatch.setenv("A_KEY", "AKIA12345678")
    given = {"credential": "env:A_CREDENTIAL", "warehouse": "env:A_KEY", "header.Accept": "application/json"}
    assert resolve_catalog_options(given)["credential"] == "client-7:p&ss word/9"
    said = "application/json: client_id=client-7&client_secret=p%26ss+word%2F9, or client-7:p&ss word/9"
    assert FailedError(said).message == "application/json: client_id=***&client_secret=***, or ***"
    assert FailedError("AKIA12345678").message == "AKIA12345678", "a warehouse is no secret"
    resolve_key("env:A_KEY")
    found = FailedError("no such key: AKIA12345678", hint="look at AKIA12345678")
    assert (found.message, found.hint, str(found)) == ("no such key: ***", "look at ***", "no such key: ***")
    assert read_secret("env:A_KEY") == "AKIA12345678"


def test_so_many_secrets_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_noted", {})
    for n in range(2 * masking._NOTED_MAX):
        masking.note_secret(f"secret-number-{n}")
    assert len(masking._noted) == masking._NOTED_MAX
    assert masking.masked(f"x secret-number-{2 * masking._NOTED_MAX - 1}") == "x ***"


# Where a password may stand, whether anybody has noted it or not.

# The letters of what is around it do not occur in it, so what is left of it can be told.
_LETTERS = string.ascii_uppercase + string.digits + "!#$%&()*+,-./:;<=>?@[]^_`{|}~\\'\""
# Not what looks like a port and a path, like the word that hints have, or like another address.
_LOOKS_OTHERWISE = re.compile(r"\d{1,5}([/?#]|$)|PASSWORD@|.*://")
passwords = st.text(_LETTERS, min_size=6, max_size=60).filter(lambda p: not _LOOKS_OTHERWISE.match(p))
around = st.text("abc xyz\n", max_size=20)


def _quoted(password: str) -> str:
    """As libpq wants a value that may hold anything."""
    return "'" + password.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _spellings(password: str) -> list[str]:
    return [
        f"postgresql://user:{password}@host:5432/database?sslmode=require",
        f"https://user:{quote(password, safe='')}@host/path",
        f"redis://:{password}@host",
        f"postgresql+psycopg://user@corp.example:{password}@host/database",
        f"host=h password={_quoted(password)} dbname=d",
        f"host=h user=u sslpassword = {_quoted(password)}",
        f"jdbc:postgresql://host:5432/database?user=u&password={quote(password, safe='')}",
        f"Driver=x;Server=h;Pwd={quote(password, safe='')}",
        f"connect({{'password': {password!r}, 'host': 'h'}})",
        json.dumps({"password": password}),
    ]


def _pieces(password: str) -> set[str]:
    """Any four characters in a row would be too much."""
    return {spelled[n : n + 4] for spelled in (password, quote(password, safe="")) for n in range(len(spelled) - 3)}


@given(passwords, around, around)
@example("A/B@C:D", "", "")
@example("'QUOTED\\", "", "\n")
@example("000000", "", "")
def test_no_text_has_a_password_that_stands_where_one_does(password: str, before: str, after: str) -> None:
    for spelled in _spellings(password):
        text = f"{before} {spelled} {after}"
        record = logging.LogRecord("any", logging.ERROR, "", 0, "%s", (text,), (ValueError, ValueError(text), None))
        record.created = 0.0  # its time has digits, as a password may
        times = _pieces("1970-01-01T00:00:00.000000Z")
        left = {
            "error": FailedError(text, hint=text).message,
            "hint": str(UsageError("x", hint=text).hint),
            "outcome of a sink": f"{Refused(text).why} {TryLater(text, 3.0).why} {Unknown(text).why}",
            "problem": bytes(problems.of_problem(problems.Problem(problems.MALFORMED, text, text)).body).decode(),
            "log": _LogFormatter(as_json=False).format(record),
            "log as JSON": _LogFormatter(as_json=True).format(record),
            "stray log": _StrayLines().format(record),
            "document": json.dumps(masked_within({"a": [text, {"b": (text,)}], "n": 1})),
        }
        allowed = times | _pieces(spelled.replace(password, " ").replace(quote(password, safe=""), " "))
        for where, said in left.items():
            found = {piece for piece in _pieces(password) if piece in said} - allowed
            assert masking.MASK in said and not found, (where, spelled, said)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://USER:PASSWORD@HOST:PORT/DATABASE; in a password write %40 for @, %3A for :, %2F for /.",
        "postgresql://user@host:5432/database, or host=… dbname=… user=…; with a password only as env:NAME.",
        "--option password=env:NAME, or password=file:/PATH",
        "http://127.0.0.1:9000/bucket/someone@example.com",
        "http://[::1]:9000/bucket/someone@example.com",
        "s3://bucket/a:b@c",
        "PWD=/home/someone",
        "FATAL: password authentication failed for user: someone@example.com",
        "postgresql://u:***@h/d, host=h password=***",
    ],
)
def test_what_is_no_password_stays(text: str) -> None:
    assert masked(text) == text


def test_the_rest_of_an_address_stays() -> None:
    assert masked("no answer of postgresql://u:s3cr3t@db.example:5432/d: timeout") == (
        "no answer of postgresql://u:***@db.example:5432/d: timeout"
    )
    assert masked("a=https://u:p@h/d;b=https://v:q@w/e") == "a=https://u:***@h/d;b=https://v:***@w/e"


def test_a_password_in_an_address_from_the_environment_is_masked_also_where_it_stands_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masking, "_noted", {})
    monkeypatch.setenv("AN_ADDRESS", "postgresql://someone:p%40ss-word@db.example/lake")
    assert resolve_secret("env:AN_ADDRESS") == "postgresql://someone:p%40ss-word@db.example/lake"
    said = "postgresql: someone at db.example may not come in with p@ss-word, nor with p%40ss-word"
    assert masked(said) == "postgresql: someone at db.example may not come in with ***, nor with ***"
    resolve_secret("postgresql://postgres:postgres@db.example/lake")
    assert masked("a sink of kind postgres") == "a sink of kind postgres", "such a password would spoil every message"
