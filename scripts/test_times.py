"""Reads what a test run recorded (a JUnit file) and shows where its time went; `--write` keeps it for the next run.

`make test` hands out the longest files first, by the seconds in tests/times.json.
"""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMES = ROOT / "tests" / "times.json"


def seconds_by_file(report: Path) -> dict[str, float]:
    """Seconds of each file below tests/, by its path there."""
    found: dict[str, float] = defaultdict(float)
    for case in ET.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        path = next(p for n in range(len(parts), 0, -1) if (p := ROOT.joinpath(*parts[:n]).with_suffix(".py")).exists())
        found[path.relative_to(ROOT / "tests").as_posix()] += float(case.attrib["time"])
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", action="store_true", help="store the seconds in tests/times.json")
    chosen = parser.parse_args()
    times = seconds_by_file(chosen.report)
    folders: dict[str, float] = defaultdict(float)
    for name, seconds in times.items():
        folders[name.split("/")[0]] += seconds
    for name, seconds in sorted(folders.items(), key=lambda f: -f[1]):
        print(f"{seconds:8.0f} s  tests/{name}")
    for name, seconds in sorted(times.items(), key=lambda f: -f[1])[:40]:
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(times.values()):8.0f} s  in all")
    if chosen.write:
        known = json.loads(TIMES.read_text("utf-8"))
        known.update({name: round(seconds, 1) for name, seconds in times.items()})
        kept = {name: known[name] for name in sorted(known) if (ROOT / "tests" / name).exists()}
        TIMES.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
