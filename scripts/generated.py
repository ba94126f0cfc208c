"""A file that is made from the code: written, or with --check only compared."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(target: Path, text: str) -> int:
    if "--check" not in sys.argv[1:]:
        target.write_text(text, "utf-8")
        return 0
    if target.is_file() and target.read_text("utf-8") == text:
        return 0
    print(f"{target.parent.name}/{target.name} is stale: run `make docs`", file=sys.stderr)
    return 1
