"""The log of libraries and of our own code while a command keeps running: on standard error, without secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from strandline.core.documents import iso
from strandline.core.text.masking import masked


@contextmanager
def log_lines(*, as_json: bool) -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogFormatter(as_json))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def mask_stray_lines() -> None:
    """Masks secrets in what Python prints to standard error when no log handler is set."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_StrayLines())


class _StrayLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _LogFormatter(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        at = iso(datetime.fromtimestamp(record.created, UTC))
        said = {"at": at, "event": "log", "level": record.levelname.lower(), "logger": record.name}
        said["message"] = masked(record.getMessage())  # before the escapes of JSON, which may hide a secret
        if record.exc_info:
            said["exception"] = masked(self.formatException(record.exc_info))
        if self._as_json:
            return json.dumps(said)
        head = f"{at} {said['level']} {record.name}: {said['message']}"
        return "\n".join(filter(None, (head, said.get("exception"))))
