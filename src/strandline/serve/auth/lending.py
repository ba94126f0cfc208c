"""What a token that is limited to datasets may say of a sink.

A sink acts as this server: it reads its environment and files, writes to its disk, and uses the cloud credentials and
certificates of its machine. A limited token must not reach through it what its datasets do not have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from strandline.deliver.sink_options import COMMON
from strandline.serve.auth.caller import Caller
from strandline.serve.problems import WRONG_SCOPE, Problem

KINDS = ("forward",)  # it needs nothing of the server but its network, which `forward.allow` bounds
_OPTIONS = {"url", "format", "compression", "in_doubt", "success_status", "success_header", "success_json"}
_ANY_KIND = {option.name for option in COMMON}
_REFERENCES = ("env:", "file:")
_HINT = "Use a token that is not limited to some datasets, or ask a person who has one."


def check_new_sink(caller: Caller, kind: str, options: Mapping[str, str]) -> None:
    """Raises Problem."""
    if not caller.is_limited:
        return
    if kind not in KINDS:
        allowed = " or ".join(KINDS)
        raise Problem(WRONG_SCOPE, f"a token that is limited to datasets adds sinks of kind {allowed} only", _HINT)
    _check_options(options, _OPTIONS | _ANY_KIND, "cannot be given")
    if referring := sorted(name for name, value in options.items() if value.strip().startswith(_REFERENCES)):
        detail = f"the option {referring[0]} names a secret of the server, and the token is limited to datasets"
        raise Problem(WRONG_SCOPE, detail, _HINT)


def check_changed_sink(caller: Caller, changed: Collection[str]) -> None:
    """`changed` are the names of options. Raises Problem."""
    if caller.is_limited:
        _check_options(changed, _ANY_KIND, "cannot be changed")


def _check_options(given: Collection[str], allowed: Collection[str], what: str) -> None:
    if refused := sorted(set(given) - set(allowed)):
        detail = f"the option {refused[0]} {what} with a token that is limited to datasets"
        raise Problem(WRONG_SCOPE, detail, _HINT)
