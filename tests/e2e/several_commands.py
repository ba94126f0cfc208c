"""Runs the commands that standard input lists as JSON, and prints what each printed; see `tests.e2e.cli.several`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from strandline.cli.main import run


def main() -> None:
    done: list[dict[str, Any]] = []
    for arguments in json.load(sys.stdin):
        if arguments[0] == "rm":
            os.unlink(arguments[1])
            continue
        given = [done[int(a[1:])]["err"].split("next: ")[1].strip() if a.startswith("@") else a for a in arguments]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(given)
        done.append({"code": code, "out": out.getvalue(), "err": err.getvalue(), "engine": "pyspark" in sys.modules})
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
