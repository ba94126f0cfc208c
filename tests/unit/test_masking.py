"""What was read as a secret is in no error, whoever repeats it."""

from __future__ import annotations

import pytest

from strandline.core import masking
from strandline.core.errors import FailedError
from strandline.core.secrets import read_secret, resolve_catalog_options, resolve_key


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
