"""Finds the process that holds a lock on a file. A message that names it is of use: a person can end that process.

Linux lists every lock in `/proc/locks`. This module never opens the locked file itself: when a process closes any
descriptor of a file, it loses all its locks on that file, SQLite's too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from strandline.core.retry import RetryPolicy

# Others hold a lock of the ledger or of the witness for milliseconds.
LOCK_HELD = RetryPolicy(0.0015, 0.0015)
_LOCKS = Path("/proc/locks")
_LINE = re.compile(r"\d+: (?:POSIX|FLOCK|OFDLCK)\s+\S+\s+(READ|WRITE)\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)\s")
_STOPPED = ("T", "t")
_COMMAND_WORDS_MAX = 3


@dataclass(frozen=True, slots=True)
class LockHolder:
    pid: int
    command: str  # the program and its subcommand, without options and their values, which may be secret
    is_stopped: bool

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" + (", which is stopped" if self.is_stopped else "")

    @property
    def hint(self) -> str:
        if self.is_stopped:
            return f"Let it continue (`kill -CONT {self.pid}`) or end it (`kill -KILL {self.pid}`: nothing is lost)."
        return f"Try again. If it lasts, check what process {self.pid} is doing."


def find_holder(*files: Path) -> LockHolder | None:
    """Another process that locks one of the files: a stopped process first, then a writer. None if there is none or
    the system does not list locks."""
    wanted = {inode for inode in map(_inode, files) if inode is not None}
    writes_by_pid: dict[int, bool] = {}
    for pid, inode, writes in _locks():
        if inode in wanted and pid != os.getpid() and _has_open(pid, files):
            writes_by_pid[pid] = writes_by_pid.get(pid, False) or writes
    holders = [(holder, writes) for pid, writes in writes_by_pid.items() if (holder := _describe(pid)) is not None]
    return max(holders, key=lambda h: (h[0].is_stopped, h[1]), default=(None, False))[0]


def find_users(files: tuple[Path, ...]) -> list[LockHolder]:
    """Other processes that have one of the files open, as far as this process has permission to see that. Empty where
    the system does not list open files."""
    pids = sorted(int(p.name) for p in Path("/proc").glob("[0-9]*") if p.name.isdigit()) if _LOCKS.exists() else []
    using = (pid for pid in pids if pid != os.getpid() and _has_open(pid, files, unknown=False))
    return [user for pid in using if (user := _describe(pid)) is not None]


def _inode(file: Path) -> int | None:
    try:
        return file.stat().st_ino
    except OSError:
        return None


def _locks() -> Iterator[tuple[int, int, bool]]:
    try:
        lines = _LOCKS.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        if (match := _LINE.match(line)) is not None:
            yield int(match[2]), int(match[3]), match[1] == "WRITE"


def _has_open(pid: int, files: tuple[Path, ...], *, unknown: bool = True) -> bool:
    """Whether the process has one of the files open; `unknown` if this process has no permission to see that.

    The inode alone is not enough: two file systems may use the same inode number, and the device in `/proc/locks` is
    not always that of `stat`."""
    names = {str(file.resolve()) for file in files}
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return unknown
    except OSError:
        return False
    return any(_target(link) in names for link in opened)


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:
        return None


def _describe(pid: int) -> LockHolder | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return LockHolder(pid, _command(name, arguments), rest.split()[0] in _STOPPED)


def _command(name: str, arguments: list[str]) -> str:
    """`strandline sink add` of `/usr/bin/python3 /usr/bin/strandline sink add --option …`; else the program's name."""
    programs = [n for n, argument in enumerate(arguments[:2]) if Path(argument).name == "strandline"]
    if not programs:
        return name
    words = ["strandline"]
    for argument in arguments[programs[0] + 1 :]:
        if len(words) == _COMMAND_WORDS_MAX or not re.fullmatch(r"[a-z]{1,20}", argument):
            break
        words.append(argument)
    return " ".join(words)
