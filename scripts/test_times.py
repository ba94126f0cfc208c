"""Reads what a test run recorded (tests/run_report.py) and shows where its time went; `--write` keeps it for the next
run.

`make test` hands out the longest files first, by the seconds in tests/times.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / "tests" / "times.json"
PHASES = ("setup", "call", "teardown")
COLUMNS = (*PHASES, "cpu")


def rows_of(recorded: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds of each phase, and of CPU, by file below tests/."""
    return {file: {**took["phases"], "cpu": took["cpu"]} for file, took in recorded["files"].items()}


def by_folder(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for file, row in rows.items():
        for column, seconds in row.items():
            found[file.split("/")[0]][column] += seconds
    return found


def waited(row: dict[str, float]) -> float:
    return sum(row.get(phase, 0.0) for phase in PHASES)


def show(title: str, rows: dict[str, dict[str, float]], most: int) -> None:
    print("".join(f"{head:>10}" for head in ("seconds", *COLUMNS)), f" {title}")
    for name, row in sorted(rows.items(), key=lambda item: -waited(item[1]))[:most]:
        print("".join(f"{seconds:10.1f}" for seconds in (waited(row), *(row.get(c, 0.0) for c in COLUMNS))), f" {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", action="store_true", help="store the seconds in tests/times.json")
    chosen = parser.parse_args()
    recorded = json.loads(chosen.report.read_text("utf-8"))
    rows = rows_of(recorded)
    show("folder", by_folder(rows), 20)
    print()
    show("file", rows, 40)
    seconds, cpu = sum(map(waited, rows.values())), sum(row["cpu"] for row in rows.values())
    print(f"\n{seconds:.0f} seconds of test processes, {cpu:.0f} of CPU, {recorded['jvm_starts']} starts of a JVM")
    if chosen.write:
        known = json.loads(TIMES.read_text("utf-8"))
        known.update({name: round(waited(row), 1) for name, row in rows.items()})
        kept = {name: known[name] for name in sorted(known) if (ROOT / "tests" / name).exists()}
        TIMES.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
