"""A follower's token."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.lake import open_lake
from strandline.ledger.replicate import sites
from tests.command_line import init_lake_here


def test_a_token_that_is_replaced_in_its_file_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_lake_here(tmp_path, monkeypatch)
    token = tmp_path / "token"
    token.write_text("first")
    with open_lake(tmp_path) as lake:
        lake.ledger.change(sites.follow, leader="http://127.0.0.1:9", token=f"file:{token}", term=1)
        before = lake.replication._current_follower(lake.replication.site)
        assert lake.replication._current_follower(lake.replication.site) is before
        token.write_text("second")
        assert lake.replication._current_follower(lake.replication.site) is not before
