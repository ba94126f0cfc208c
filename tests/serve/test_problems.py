"""Every error of the tree has a status, a type and a form; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from strandline.core import errors
from strandline.core.errors import StrandlineError
from strandline.serve import problems


def tree(error: type[StrandlineError] = StrandlineError) -> Iterator[type[StrandlineError]]:
    yield error
    for inner in error.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from tree(inner)


def made(kind: type[StrandlineError]) -> StrandlineError:
    return errors.BadRow(3, "what happened") if kind is errors.BadRow else kind("what happened", hint="what to do")


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_is_a_problem_document(kind: type[StrandlineError]) -> None:
    error = made(kind)
    response = problems.of_error(error, 7, limited=False)
    document = json.loads(bytes(response.body))
    assert response.media_type == "application/problem+json"
    assert document["status"] == response.status_code == problems.status_of(kind)
    assert document["detail"] == "what happened" and document["hint"] == error.hint
    assert document["retryable"] is kind.retryable
    assert document["type"].startswith("urn:strandline:problem:") and document["title"]
    asks_again = kind.retryable and response.status_code in (409, 429, 503)
    assert response.headers.get("retry-after") == ("7" if asks_again else None)


@pytest.mark.parametrize("kind", [k for k in tree() if k.retryable], ids=lambda kind: kind.__name__)
def test_whoever_may_try_again_is_told_to(kind: type[StrandlineError]) -> None:
    document = json.loads(bytes(problems.of_error(kind("what happened"), 7, limited=False).body))
    assert document["retryable"] and document["hint"]


def test_no_two_errors_have_the_same_type() -> None:
    kinds = list(tree())
    types = {problems._kind_of(kind).name for kind in kinds}
    assert len(types) == len(kinds)
    assert not types & {k.name for k in problems.KINDS}


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.UsageError, 400),
        (errors.SchemaError, 400),
        (errors.NoSuchSink, 404),
        (errors.SweepRunning, 409),
        (errors.AlreadyRunning, 409),
        (errors.TooManyTasks, 429),
        (errors.StorageError, 503),
        (errors.LedgerBusy, 503),
        (errors.LedgerRefused, 503),
    ],
)
def test_the_status_says_whose_fault_it_is(kind: type[StrandlineError], status: int) -> None:
    assert problems.status_of(kind) == status


def test_what_nobody_foresaw_is_answered_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    response = problems.of_unexpected(ValueError("the password is hunter2hunter2"))
    assert response.status_code == 500 and b"hunter2" not in bytes(response.body)
    assert "hunter2" in caplog.text


def test_a_name_that_is_no_valid_text_can_be_quoted() -> None:
    assert problems.of_error(errors.NoSuchSink("there is no sink \ud800"), 1, limited=False).status_code == 404


def test_a_malformed_request_is_told_where_and_not_what_was_sent() -> None:
    found = [{"loc": ("body", "token"), "msg": "too long", "input": "sl_secret", "type": "x"}]
    document = json.loads(bytes(problems.of_problem(problems.malformed(found)).body))
    assert document["errors"] == [{"where": ["body", "token"], "what": "too long"}]
    assert "sl_secret" not in json.dumps(document)
