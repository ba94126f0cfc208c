"""A reconciler in a process of its own, to be killed: `HOME act`, `HOME give-up`, `HOME delete`, `HOME restore RUN`,
`HOME purge`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import strandline
from strandline.core import failpoints
from strandline.core.records.reconcile_records import Asked
from strandline.ledger.engine import Ledger
from tests.reconcile import no_grace  # noqa: F401


def hold_no_lock_while_stopped() -> None:
    """One that is stopped while it renews its lease would keep SQLite's lock."""
    turn, write, send = threading.RLock(), Ledger.write, failpoints._signal

    @contextmanager
    def in_turn(ledger: Ledger) -> Iterator[Any]:
        with turn, write(ledger) as connection:
            yield connection

    def alone(number: int) -> None:
        if number != signal.SIGSTOP:
            return send(number)
        with turn:
            return send(number)

    Ledger.write = in_turn  # type: ignore[method-assign]
    failpoints._signal = alone


def main(home: str, what: str, *arguments: str) -> None:
    hold_no_lock_while_stopped()
    with strandline.open(home) as lake:
        match what:
            case "act":
                lake.reconciler.run(Asked(act=True))
            case "give-up":
                lake.reconciler.run(Asked(act=True, accept_loss=True))
            case "delete":
                lake.reconciler.run(Asked(act=True, delete=True))
            case "restore":
                lake.reconciler.restore(int(arguments[0]))
            case "purge":
                lake.reconciler.purge()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
