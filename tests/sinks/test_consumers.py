"""What docs/sinks.md tells consumers to do is done here, as it stands on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from strandline.core.types import Seq
from strandline.deliver.sink import SinkContext
from strandline.deliver.sink_kinds import find_kind, resolve
from tests.servers import Postgres
from tests.sinks.contract import ADDRESS, DATASET, TOKEN, Made, landed, parcel, ready

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sinks.md").read_text("utf-8")


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def made(home: Path, kind_name: str, **options: str) -> Made:
    kind = find_kind(kind_name)

    def opened(place: str = "one", generation: int = 1) -> Any:
        return kind.open(SinkContext(home, DATASET, generation, resolve(kind, options)))

    return Made(opened, lambda *_: [], None)


def test_a_consumer_of_files_reads_up_to_the_mark_and_each_object_once(tmp_path: Path) -> None:
    [code] = fences("python")
    names: dict[str, Any] = {}
    exec(code, names)
    sink = ready(made(tmp_path, "files", path="out"))
    lane = tmp_path / "out" / DATASET / "all"
    assert names["new_objects"](lane, 0) == []
    sender = sink.sender(TOKEN)
    landed(sender, parcel(sink.form, ADDRESS, 6, 10))
    assert names["new_objects"](lane, 0) == [], "a lower one may still come"
    landed(sender, parcel(sink.form, ADDRESS, 1, 5))
    sink.set_watermarks([(ADDRESS, Seq(10))])
    found = names["new_objects"](lane, 0)
    assert [(lo, hi) for lo, hi, _ in found] == [(1, 5), (6, 10)]
    found[0][2].unlink()
    landed(sender, parcel(sink.form, ADDRESS, 11, 12))
    sink.set_watermarks([(ADDRESS, Seq(12))])
    assert [(lo, hi) for lo, hi, _ in names["new_objects"](lane, 10)] == [(11, 12)]


@pytest.fixture
def database(postgres_server: Postgres) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


def test_a_consumer_of_a_table_gets_every_range_once_in_whatever_order_they_land(database: str, tmp_path: Path) -> None:
    create, step = fences("sql")
    sink = ready(made(tmp_path, "postgres", dsn=database, table="orders", create="true"))
    sender = sink.sender(TOKEN)
    with psycopg.connect(database, autocommit=True) as consumer:

        def numbers() -> list[int]:
            return [row[0] for row in consumer.execute(step.encode())]

        consumer.execute(create.encode())
        assert numbers() == []
        landed(sender, parcel(sink.form, ADDRESS, 6, 10))
        assert numbers() == [6, 7, 8, 9, 10]
        landed(sender, parcel(sink.form, ADDRESS, 1, 5))
        landed(sender, parcel(sink.form, ADDRESS, 11, 100, numbers=[20, 30]))
        assert numbers() == [1, 2, 3, 4, 5, 20, 30]
        assert numbers() == []
    sender.close()
    sink.close()
