"""The checks of `doctor`: the machine, and the lake if there is one."""

from __future__ import annotations

import os
from pathlib import Path

from strandline.core.errors import ConfigError, StrandlineError
from strandline.core.settings.lake_config import LakeConfig, find_config, load_config
from strandline.core.text.wording import plural
from strandline.iceberg.session.runtime import RuntimeCheck, runtime_report
from strandline.lake import Lake


def all_checks(config: Path | None) -> list[RuntimeCheck]:
    return [*runtime_report(s3=is_s3(config)), *_lake_checks(config)]


def is_s3(config: Path | None) -> bool:
    """False if the settings cannot be read; the checks report that."""
    try:
        found = _config(config)
    except StrandlineError:
        return False
    return found is not None and found.settings.warehouse.is_s3


def _config(named: Path | None) -> LakeConfig | None:
    """None if no lake was named and there is none here."""
    try:
        path = find_config(named, os.environ, Path.cwd())
    except ConfigError:
        if named is None and "STRANDLINE_CONFIG" not in os.environ:
            return None
        raise
    return load_config(path)


def _lake_checks(named: Path | None) -> list[RuntimeCheck]:
    """The checks up to the first that fails: those after it depend on it."""
    checks: list[RuntimeCheck] = []
    what = "settings"
    try:
        config = _config(named)
        if config is None:
            return [RuntimeCheck("lake", True, "none here; `strandline init` creates one")]
        with Lake(config) as lake:
            checks.append(RuntimeCheck(what, True, str(config.home)))
            what = "ledger"
            lake.open()
            checks.append(RuntimeCheck(what, True, f"lake {lake.id}, {plural(len(lake.datasets()), 'dataset')}"))
            what = "witness"
            checks.append(RuntimeCheck(what, True, f"last sequence number: {lake.witness.read().highest:,}"))
    except StrandlineError as e:
        checks.append(RuntimeCheck(what, False, e.message, e.hint))
    return checks
