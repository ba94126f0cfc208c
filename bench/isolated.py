"""`python -m bench.isolated GROUP N WORK ANSWER [--quick]`: one measurement, in a process of its own.

A JVM, a warmed-up session or a grown heap of one measurement would otherwise colour the next. What it says on standard
output is progress; its samples go into the file ANSWER.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.groups import GROUPS
from bench.measure import Bench, end_at_sigterm


def main(arguments: list[str]) -> None:
    end_at_sigterm()
    group, number, work, answer, *options = arguments
    measurement = GROUPS[group][int(number)]
    bench = Bench(Path(work), "--quick" in options, lambda words: print(words, flush=True))
    found = measurement.run(bench)
    Path(answer).write_text(json.dumps({name: asdict(samples) for name, samples in found.items()}), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
