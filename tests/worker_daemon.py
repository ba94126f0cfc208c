"""What Spark's Python workers of a test run are forked from: it has imported what their tasks need.

A worker is forked for each task that died, and for each that comes after a minute without one. Without this it spends
more than a second on imports.
"""

from __future__ import annotations

from strandline.iceberg.session.worker_daemon import fork_workers

PRELOADED = (
    "pandas",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "strandline.deliver.send.build_gather",
    "strandline.deliver.send.build_parquet",
    "strandline.deliver.sinks.files.sink",
    "strandline.deliver.sinks.forward.sink",
    "strandline.deliver.sinks.postgres.sink",
    "strandline.deliver.sinks.s3.sink",
    "strandline.ingest.sources.read",
    "strandline.receive.batch_frame",
)

if __name__ == "__main__":
    fork_workers(*PRELOADED)
