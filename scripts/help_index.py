"""Writes src/strandline/cli/help_index.json from the commands: what `strandline --help` says of each of them.

`--check` writes nothing and fails where the file is not what it should be.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from generated import write_or_check

from strandline.cli.main import MODULES, application

TARGET = Path(__file__).resolve().parent.parent / "src" / "strandline" / "cli" / "help_index.json"


def index() -> str:
    commands = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    listed = {
        name: {
            "panel": panel if isinstance(panel := commands[name].rich_help_panel, str) else None,
            "help": (commands[name].help or "").split("\n\n")[0],
        }
        for modules in MODULES.values()
        for names in modules.values()
        for name in names
    }
    return json.dumps(listed, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, index()))
