"""A writer in a process of its own, to be killed and stopped: `python -m tests.e2e.writer HOME WHAT [ARGS]`.

Prints one JSON line with what came of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import strandline
from strandline.core.errors import StrandlineError


def main(home: str, what: str, *arguments: str) -> int:
    lake = strandline.open(Path(home))
    try:
        match what:
            case "append":
                batch, start, count = arguments[0], int(arguments[1]), int(arguments[2])
                key = arguments[3] if len(arguments) > 3 else "id"
                df = lake.spark.range(start, start + count, 1, 2)
                df = df.selectExpr(f"id AS {key}", "concat('row ', id) AS text")
                done = lake.append("events", df, batch_id=batch)
                answer = {"rows": str(done.rows), "duplicate": done.duplicate}
            case "append-many":
                for n in range(int(arguments[0]), int(arguments[1])):
                    df = lake.spark.range(n * 10, n * 10 + 10, 1, 2).selectExpr("id", "concat('row ', id) AS text")
                    lake.append("events", df, batch_id=f"batch-{n}")
                    print(json.dumps({"acknowledged": n}), flush=True)
                answer = {"done": True}
            case "recover":
                report = lake.recover()
                answer = {"published": [str(r) for r in report.published]}
            case "application":
                answer = {"application": lake.spark.sparkContext.applicationId}
            case "adopt":
                answer = {"numbered": lake.adopt_dataset(arguments[0]).rows}
            case _:
                raise ValueError(what)
    except StrandlineError as e:
        print(json.dumps({"error": type(e).__name__, "message": e.message}), flush=True)
        return e.exit_code
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
