"""What `make bench` promises about its results file. Nothing here is timed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from rich.console import Console

from bench import __main__ as program
from bench.groups import GROUPS
from bench.measure import Bench, in_turn
from bench.page import PAGE, write_page
from bench.peers import environment
from bench.results import SAMPLES_MIN, Figure, Goal, Samples, group_document, read, result, write
from bench.scale import costs
from bench.table import table

KEYS = {"figure", "group", "ours", "peer", "peer_name", "unit", "ratio", "goal", "holds", "samples"}
FASTER = Figure("speed", "rows/s", "a peer", Goal(0.9, "at least"))
SLOWER = Figure("time", "s", "a peer", Goal(1.3, "at most"))
ALONE = Figure("status", "s", None, Goal(1.0, "at most", of="ours"))
LOST = Figure("rows lost", "rows", "a peer", Goal(0, "exactly", "ours"), counts=True)


def five(value: float) -> list[float]:
    return [value] * 5


WHERE = {
    "date": "2026-01-02",
    "machine": {"processor": "a processor", "cores": 2, "memory_gib": 8, "system": "Linux x86_64"},
    "versions": {"python": "3.12.1", "pyspark": "4.1.0"},
}


def test_every_entry_has_the_promised_keys_and_is_json(tmp_path: Path) -> None:
    entries = [result(FASTER, "ingest", Samples(five(9), five(10))), result(ALONE, "ingest", None)]
    document = group_document("ingest", entries, WHERE, quick=False)
    assert write(document, tmp_path / "results") == tmp_path / "results" / "ingest.json"
    found: dict[str, Any] = json.loads((tmp_path / "results" / "ingest.json").read_text())
    assert found == json.loads(json.dumps(document)) and found["command"] == "make bench ONLY=ingest"
    assert all(set(entry) >= KEYS for entry in found["results"])


def test_small_sizes_do_not_replace_the_figures(tmp_path: Path) -> None:
    figures = group_document("read", [result(SLOWER, "read", Samples(five(1), five(1)))], WHERE, quick=False)
    write(figures, tmp_path)
    write(group_document("read", [], WHERE, quick=True), tmp_path)
    (found,) = read(tmp_path, GROUPS)
    assert found["results"][0]["figure"] == "time"


def test_the_spread_is_where_the_middle_half_of_the_ratios_lies() -> None:
    assert Samples([1, 2, 3, 4, 50], five(1)).spread == (2, 4)
    assert Samples([1, 2, 3, 4, 50]).spread == (2, 4), "of the samples themselves where there is no peer"
    assert Samples([1, 2, 3]).spread is None, "of too few there is none"


def test_the_page_shows_each_figure_with_its_command_its_versions_and_whether_it_holds(tmp_path: Path) -> None:
    entries = [
        result(FASTER, "read", Samples(five(95), five(100))),
        result(SLOWER, "read", Samples(five(2), five(1))),
        result(ALONE, "read", None, "no | server"),
    ]
    write_page([group_document("read", entries, WHERE, quick=False)], tmp_path / "benchmarks.md")
    shown = (tmp_path / "benchmarks.md").read_text()
    assert "`make bench ONLY=read`, 2026-01-02: a processor, 2 cores, 8 GiB" in shown and "pyspark 4.1.0" in shown
    rows = {line.split(" | ")[0].lstrip("| "): line for line in shown.splitlines() if line.startswith("| ")}
    assert rows["speed"].endswith("| 95 | 100 | rows/s | 0.95 | 0.95 to 0.95 | ≥ 0.9 | 5 | yes |")
    assert rows["time"].endswith("| **no** |")
    assert rows["status<br>*no / server*"].endswith("| not measured |")
    picture = ElementTree.parse(tmp_path / "images" / "bench-read.svg")
    assert "![bench read](images/bench-read.svg)" in shown
    assert {e.text for e in picture.iter() if e.tag.endswith("text")} >= {"speed", "time", "0.95", "2"}


def test_figures_of_one_series_are_points_of_one_line(tmp_path: Path) -> None:
    def point(job: str, factor: int, seconds: float) -> dict[str, Any]:
        size = {"picture": "seconds", "series": job, "x": factor, "x_name": "size"}
        return result(Figure(f"{job} {factor}", "s", None, None), "growth", Samples(five(seconds), None, size))

    entries = [point(job, factor, 0.1 * n) for n, job in ((1, "tick"), (2, "status")) for factor in (1, 10, 100)]
    write_page([group_document("growth", entries, WHERE, quick=False)], tmp_path / "benchmarks.md")
    picture = ElementTree.parse(tmp_path / "images" / "bench-growth-seconds.svg")
    lines = [e.get("points", "").split() for e in picture.iter() if e.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [3, 3]
    heights = [{point.split(",")[1] for point in line} for line in lines]
    assert all(len(h) == 1 for h in heights) and heights[0] != heights[1], "flat, and one above the other"


def test_the_committed_page_is_what_the_committed_results_give(tmp_path: Path) -> None:
    write_page(read(program.RESULTS, GROUPS), tmp_path / PAGE.name)
    assert (tmp_path / PAGE.name).read_text() == PAGE.read_text(), "run `.venv/bin/python -m bench --page`"


def test_the_ratio_is_that_of_the_medians_so_one_bad_sample_changes_nothing() -> None:
    found = result(FASTER, "ingest", Samples([95, 95, 95, 95, 1], [100, 100, 100, 100, 9000]))
    assert (found["ours"], found["peer"], found["ratio"], found["samples"]) == (95, 100, 0.95, 5)
    assert found["holds"] is True


@pytest.mark.parametrize(
    ("figure", "ours", "holds"),
    [(FASTER, 0.9, True), (FASTER, 0.89, False), (SLOWER, 1.3, True), (SLOWER, 1.31, False)],
)
def test_a_goal_is_met_at_its_bound_and_missed_beyond_it(figure: Figure, ours: float, holds: bool) -> None:
    assert result(figure, "read", Samples(five(ours), five(1.0)))["holds"] is holds


@pytest.mark.parametrize(("opened", "holds"), [(2, True), (1, False), (3, False)])
def test_an_exact_goal_is_missed_on_either_side(opened: float, holds: bool) -> None:
    files = Figure("files", "files", "files that hold new rows", Goal(1.0, "exactly"))
    assert result(files, "read", Samples(five(opened), five(2)))["holds"] is holds


def test_a_figure_without_a_peer_is_judged_by_itself_and_says_null() -> None:
    found = result(ALONE, "ingest", Samples(five(0.5)))
    assert (found["peer"], found["peer_name"], found["ratio"], found["peer_samples"]) == (None, None, None, None)
    assert found["holds"] is True
    assert result(ALONE, "ingest", Samples(five(1.5)))["holds"] is False


def test_lost_rows_are_counted_and_not_divided() -> None:
    found = result(LOST, "faults", Samples(five(0), five(20), {"rows": 1000}))
    assert (found["counts"], found["ratio"], found["spread"], found["holds"]) == (True, None, None, True)
    found = result(LOST, "faults", Samples([0, 0, 0, 0, 3], five(20), {"rows": 1000}))
    assert found["holds"] is False, "once is too often"


def test_what_was_not_run_does_not_hold_and_has_no_value() -> None:
    for figure in (FASTER, Figure("informational", "s", None, None)):
        found = result(figure, "ingest", None)
        assert (found["ours"], found["peer"], found["ratio"], found["samples"]) == (None, None, None, 0)
        assert found["holds"] is False


def test_a_figure_without_a_goal_holds_once_it_is_measured() -> None:
    found = result(Figure("informational", "s", "a peer", None), "ingest", Samples(five(3), five(1)))
    assert (found["goal"], found["holds"]) == (None, True)


def test_fewer_than_five_samples_of_either_side_do_not_count() -> None:
    found = result(FASTER, "ingest", Samples(five(1), [1.0] * 4))
    assert (found["holds"], found["samples"]) == (False, 4)
    assert SAMPLES_MIN == 5


def test_a_goal_says_which_way_it_points() -> None:
    found = result(SLOWER, "read", Samples(five(1), five(1)))
    assert (found["goal"], found["goal_is"], found["goal_of"]) == (1.3, "at most", "ratio")


def test_samples_are_taken_in_turn(tmp_path: Path) -> None:
    order: list[str] = []

    def side(name: str, value: float) -> float:
        order.append(name)
        return value

    bench = Bench(tmp_path, False, lambda words: None)
    found = in_turn(bench, 3, lambda n: side("ours", n), lambda n: side("peer", -n))
    assert order == ["ours", "peer"] * 3
    assert found == [[0, 1, 2], [0, -1, -2]]


def test_groups_that_were_not_picked_stay_in_the_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "WORK", tmp_path / "work")
    console = Console(file=(tmp_path / "out").open("w"))
    results, failures = program.run([], console, quick=True)
    figures = [(group, f.name) for group, ms in GROUPS.items() for m in ms for f in m.figures]
    assert [(r["group"], r["figure"]) for r in results] == figures
    assert failures == 0 and not any(r["holds"] for r in results)
    assert not (tmp_path / "work").exists()


def test_a_measurement_that_fails_is_said_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*args: object, **options: object) -> dict[str, Samples]:
        raise program.CouldNotMeasure("Traceback\nno server")

    monkeypatch.setattr(program, "WORK", tmp_path / "work")
    monkeypatch.setattr(program, "measure", fail)
    with (tmp_path / "out").open("w") as out:
        results, failures = program.run(["ingest"], Console(file=out), quick=True)
    assert failures == len(GROUPS["ingest"])
    notes = {(r["group"], r["note"], r["holds"]) for r in results}
    assert notes == {("ingest", "no server", False)} | {(group, None, False) for group in GROUPS if group != "ingest"}


STARTS_ANOTHER = """
import subprocess, sys, time
from bench.measure import end_at_sigterm
end_at_sigterm()
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(other.pid, flush=True)
time.sleep(600)
"""


def test_nothing_runs_on_after_a_measurement_that_was_interrupted() -> None:
    command = [sys.executable, "-c", STARTS_ANOTHER]
    with (
        pytest.raises(KeyboardInterrupt),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=program.HERE.parent, start_new_session=True
        ) as process,
        program.limited(process),
    ):
        assert process.stdout is not None
        other = psutil.Process(int(process.stdout.readline()))
        raise KeyboardInterrupt
    assert process.returncode is not None
    assert psutil.wait_procs([other], 60)[1] == []


STARTS_ONE_THAT_STAYS = """
import signal, subprocess, sys, time
from bench.measure import end_at_sigterm
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(other.pid, flush=True)
time.sleep(600)
"""


def test_nothing_runs_on_of_what_began_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "END_SECONDS_MAX", 0.2)
    command = [sys.executable, "-c", STARTS_ONE_THAT_STAYS]
    with (
        pytest.raises(KeyboardInterrupt),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=program.HERE.parent, start_new_session=True
        ) as process,
        program.limited(process),
    ):
        assert process.stdout is not None
        other = psutil.Process(int(process.stdout.readline()))
        raise KeyboardInterrupt
    assert psutil.wait_procs([other], 60)[1] == []


def test_temporary_files_of_a_measurement_go_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "WORK", tmp_path / "work")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dmine=1")
    with pytest.raises(KeyboardInterrupt), program.workplace() as place:
        assert place.environ["TMPDIR"] == place.environ["SPARK_LOCAL_DIRS"] == str(place.temporary)
        assert place.environ["JDK_JAVA_OPTIONS"] == f"-Djava.io.tmpdir={place.temporary} -Dmine=1"
        (place.temporary / "left").mkdir()
        raise KeyboardInterrupt
    assert not place.temporary.exists() and not place.work.exists()


def test_a_peer_that_ends_without_an_answer_fails_its_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "python", lambda: Path(sys.executable))
    with (
        pytest.raises(environment.PeerFailed, match="ended with 1 at 'run'"),
        environment.running("no_such_program", tmp_path) as peer,
    ):
        peer.ask("run")


def test_peers_are_pinned_with_checksums() -> None:
    lines = environment.LOCK.read_text().splitlines()
    pinned = [n for n, line in enumerate(lines) if "==" in line]
    assert pinned and all("--hash=sha256:" in lines[n + 1] for n in pinned)
    assert set(environment.versions("dlt", "duckdb", "polars")) == {"dlt", "duckdb", "polars"}


def test_names_of_figures_are_unique() -> None:
    names = [f.name for ms in GROUPS.values() for m in ms for f in m.figures]
    assert len(names) == len(set(names))


def test_groups_are_picked_by_name_and_a_wrong_name_is_refused() -> None:
    assert program.picked("read") == ["read"]
    assert program.picked(" ingest, read ") == ["ingest", "read"]
    assert program.picked("") == list(GROUPS)
    with pytest.raises(argparse.ArgumentTypeError, match="there is no group 'raed'"):
        program.picked("raed")


def test_the_table_shows_what_holds_what_does_not_and_what_was_not_run(tmp_path: Path) -> None:
    results = [
        result(FASTER, "ingest", Samples(five(950_000), five(1_000_000))),
        result(SLOWER, "read", Samples(five(2), five(1))),
        result(ALONE, "read", None),
    ]
    with (tmp_path / "out").open("w") as out:
        Console(file=out, width=160).print(table(results))
    shown = (tmp_path / "out").read_text().splitlines()
    lines = {line.split("│")[2].strip(): line for line in shown if line.startswith("│")}
    assert "950,000" in lines["speed"] and "≥ 0.9" in lines["speed"] and "yes" in lines["speed"]
    assert "≤ 1.3" in lines["time"] and "│ no" in lines["time"]
    assert "≤ 1 s" in lines["status"] and "not run" in lines["status"]


def test_a_count_is_shown_as_one_out_of_all_rows(tmp_path: Path) -> None:
    entry = result(LOST, "faults", Samples(five(0), [10, 20, 20, 20, 20], {"rows": 1000}))
    write_page([group_document("faults", [entry], WHERE, quick=False)], tmp_path / "benchmarks.md")
    (shown,) = [
        line for line in (tmp_path / "benchmarks.md").read_text().splitlines() if line.startswith("| rows lost")
    ]
    assert shown.endswith("| 0 of 1,000 | 10 to 20 of 1,000 | rows | – | – | = 0 rows | 5 | yes |")
    assert not (tmp_path / "images" / "bench-faults.svg").exists(), "nothing to draw"


def test_a_machine_that_is_slow_for_a_while_is_slow_for_both() -> None:
    assert Samples([10, 1, 10, 10, 2], [10, 1, 1, 10, 2]).ratio == 1
    assert Samples([1.0, 2.0, 3.0], [1.0]).ratio == 2, "not in turn: each by itself"
    assert Samples([1.0]).ratio is None and Samples([1.0], [0.0]).ratio is None


def test_every_cost_that_the_page_about_growth_names_is_the_bound_of_a_measurement() -> None:
    text = (PAGE.parent / "scale.md").read_text("utf-8")
    rows = dict(line.strip("| ").split(" | ")[:2] for line in text.splitlines() if line.startswith("| "))
    bounded = [f for f in costs.FIGURES if f.goal is not None and f.goal.of == "ours"]
    assert len(bounded) == 13
    for figure in bounded:
        assert figure.goal is not None
        assert rows[figure.name].startswith(f"{figure.goal.bound:,} {figure.unit.removesuffix('s')}"), figure.name
