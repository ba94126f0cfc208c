"""A leader and a follower in one process, for tests: two lakes, each with its own ledger, catalog and warehouse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strandline import Lake
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.lake_admin import follow_lake, init_lake
from strandline.replicate.follow.follower import Follower, FollowReport
from tests.conftest import MakeHome
from tests.spark.protocol import COLUMNS, frame

Pair = tuple[Lake, Lake]
Sites = tuple[Lake, Lake, Lake]
LEASE_SECONDS = 60
SETTINGS: dict[str, dict[str, Any]] = {"ingest": {"lease_seconds": LEASE_SECONDS}, "follow": {"items_at_once_max": 2}}


@contextmanager
def new_leader(folder: Path, make_home: MakeHome) -> Iterator[Lake]:
    make_home(folder / "leader", SETTINGS)
    with init_lake(folder / "leader") as lake:
        yield lake


@contextmanager
def new_follower(
    folder: Path,
    make_home: MakeHome,
    leader: Lake,
    name: str = "follower",
    *,
    is_added: bool = False,
    settings: Mapping[str, Mapping[str, Any]] = SETTINGS,
) -> Iterator[Lake]:
    """`is_added`: the leader knows it, so that it may be promoted."""
    token = folder / f"token-{name}"
    if is_added:
        token.write_text(leader.followers.add(name)[1])
    make_home(folder / name, settings)
    with follow_lake(folder / name, str(leader.config.home), token=f"file:{token}" if is_added else None) as lake:
        yield lake


@contextmanager
def new_pair(folder: Path, make_home: MakeHome, columns: Sequence[Mapping[str, Any]] = COLUMNS) -> Iterator[Pair]:
    """A leader with the dataset `events`, and a follower that has it."""
    with new_leader(folder, make_home) as leader:
        leader.create_dataset("events", parse_columns(columns))
        with new_follower(folder, make_home, leader) as follower:
            follow(follower)
            yield leader, follower


@contextmanager
def three_sites(folder: Path, make_home: MakeHome, *, is_added: bool = False) -> Iterator[Sites]:
    """A leader and two followers, `new` and `other`, that have its first ten rows. `is_added`: of `new`."""
    with new_leader(folder, make_home) as old:
        old.create_dataset("events", parse_columns(COLUMNS))
        old.append("events", frame(old, 0), batch_id="a")
        with (
            new_follower(folder, make_home, old, "new", is_added=is_added) as new,
            new_follower(folder, make_home, old, "other") as other,
        ):
            follow(new)
            follow(other)
            yield old, new, other


def follow(lake: Lake) -> FollowReport:
    """One pass that must not fail."""
    report = lake.replication.follow_once()
    if report.failed:
        raise report.failed[0]
    return report


def restarted(lake: Lake) -> Follower:
    """As after a new start of the process: nothing in memory is left."""
    if "follower" in lake.replication.__dict__:
        lake.replication.follower.close()
        del lake.replication.__dict__["follower"]
    return lake.replication.follower


def table(lake: Lake, name: str = "events") -> list[tuple[Any, ...]]:
    """Everything in main, our own columns too, in the order of sequence numbers."""
    found = lake.spark.table(f"lake.default.{name}")
    columns = sorted(found.columns)
    return sorted((tuple(r) for r in found.select(*columns).collect()), key=str)


def assert_same(leader: Lake, follower: Lake, name: str = "events") -> None:
    """The follower has what the leader has, its seal is the leader's, and nothing is left over."""
    from tests.spark.protocol import branches

    assert table(follower, name) == table(leader, name)
    assert follower.sealed(name) == leader.sealed(name)
    assert branches(follower, name) == []
    with follower.ledger.read() as connection:
        from strandline.ledger.replicate import following

        assert following.open_items(connection) == []


def take_over(lake: Lake, term: int) -> None:
    """As `strandline promote --leader-is-stopped`, at a site whose number gives it this term."""
    from strandline.core.sites.terms import SITES_MAX
    from strandline.ledger.replicate import sites

    lake.ledger.change(sites.take_number, term % SITES_MAX)
    assert lake.replication.promotion.run(leader_is_stopped=True).term == term
    if "follower" in lake.replication.__dict__:
        lake.replication.follower.close()
        del lake.replication.__dict__["follower"]


def follow_another(lake: Lake, leader: Lake) -> None:
    """A follower is pointed to the site that has taken over."""
    from strandline.core.settings.lake_config import CONFIG_NAME
    from strandline.ledger.replicate import sites

    term = lake.replication.site.term
    address = str(leader.config.home / CONFIG_NAME)
    lake.ledger.change(sites.follow, leader=address, token=None, term=term)
    restarted(lake)
