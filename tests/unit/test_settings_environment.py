"""Settings of the environment win over those of the file, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import ConfigError
from strandline.core.settings.lake_config import LakeConfig, load_config

FILE = """
[serve]
port = 1
refresh_seconds = 5

[spark.options]
"spark.a" = "file"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "strandline.toml"
    found.write_text(FILE, "utf-8")
    return found


def load(path: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> LakeConfig:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_config(path)


def test_one_setting_leaves_the_others_of_its_section(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(path, monkeypatch, STRANDLINE_SERVE__PORT="2", STRANDLINE_DELIVER__POLL_SECONDS="7").settings
    assert (found.serve.port, found.serve.refresh_seconds, found.deliver.poll_seconds) == (2, 5, 7)
    assert found.spark.options == {"spark.a": "file"}


def test_a_variable_may_hold_a_section_or_a_table_as_json(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(
        path,
        monkeypatch,
        STRANDLINE_SERVE='{"port": 3, "host": "::1"}',
        STRANDLINE_SPARK__OPTIONS='{"spark.b": "2"}',
        STRANDLINE_FORWARD__ALLOW='["10.0.0.0/8"]',
    ).settings
    assert (found.serve.port, found.serve.host, found.serve.refresh_seconds) == (3, "::1", 5)
    assert found.spark.options == {"spark.a": "file", "spark.b": "2"}
    assert found.forward.allow == ["10.0.0.0/8"]


def test_variables_are_the_same_in_either_case_and_others_are_none_of_ours(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load(path, monkeypatch, strandline_serve__port="4", STRANDLINE_CONFIG="elsewhere", STRANDLINE_DEBUG="1")
    assert found.settings.serve.port == 4
    assert load(path, monkeypatch, SERVE__PORT="5").settings.serve.port == 4


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("STRANDLINE_SERVE__PROT", "1", "serve.prot"),
        ("STRANDLINE_SERV__PORT", "1", "serv.port"),
        ("STRANDLINE_SERVE__PORT", "many", "serve.port"),
        ("STRANDLINE_SERVE", "{", "not JSON"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(path, monkeypatch, **{name: value})


def test_an_empty_list_is_one_of_each_lake_own(path: Path) -> None:
    one, other = load_config(path).settings, load_config(path).settings
    one.forward.allow.append("10.0.0.1")
    assert other.forward.allow == load_config(path).settings.forward.allow == []
