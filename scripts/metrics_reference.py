"""Writes docs/metrics.md from the metrics themselves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from prometheus_client import Metric

from strandline.serve.process_metrics import ProcessMetrics
from strandline.status.metrics import HELP, LABELS, PREFIX

TARGET = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
INTRO = """# Metrics

`strandline serve` answers `GET /metrics` in the text format of Prometheus, for tokens with the role `read` that are
not limited to some datasets. Let Prometheus read it:

```yaml
scrape_configs:
  - job_name: strandline
    authorization:
      credentials_file: /etc/prometheus/strandline.token   # strandline token create prometheus --role read
    static_configs:
      - targets: ["127.0.0.1:8421"]
```

[alerts.yml](alerts.yml) has example rules, [grafana.json](grafana.json) a dashboard. Without a server, `strandline
metrics` prints the metrics of the lake, for the node exporter's textfile collector ([operations](operations.md)).

## The lake

Gauges, from the ledger: every process that serves the lake shows the same. They are at most `serve.refresh_seconds`
old, or twice as old while they are read anew; the header `Age` says how old. What is not known is left out, and is
never 0. Take `max` over processes, not `sum`.

| metric | labels | meaning |
|---|---|---|
"""
PROCESS = """
## This process

Counters and histograms since this process began to serve. `sum(rate(…))` over all processes gives the whole.

| metric | type | labels | meaning |
|---|---|---|---|
"""
END = """
Outcomes of a tick are `idle`, `delivered`, `waiting` (it failed and is tried again), `stopped` and `busy`
(another process delivers). Those of a batch are `published`, `duplicate` and `failed`. Those of a run are `done`,
`failed`, `refused`, `skipped`, and for the reconciler the reason that it ended early for. `route` is the
path as the API's description has it, `none` for a path that does not exist. Beside these there are `process_*`:
processor time, memory, open files.
"""


def text() -> str:
    lake = "".join(f"| `{PREFIX}{name}` | {_labels(LABELS[name])} | {text} |\n" for name, text in HELP.items())
    with closing(ProcessMetrics()) as counted:
        own = "".join(
            f"| `{_shown(m)}` | {m.type} | {_labels(labels)} | {m.documentation} |\n"
            for m, labels in counted.described()
        )
    return INTRO + lake + PROCESS + own + END


def _shown(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
