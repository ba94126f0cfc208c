"""How a process asks the fork server (`tests/fork_server.py`) for a fork, and the command that does so for a shell."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

NUMBER = struct.Struct("!q")


def ask(server: socket.socket, command: list[str], cwd: str, environ: dict[str, str], files: list[int]) -> int:
    """The process that the server forked. `command` is a module and its `sys.argv`, `files` are its standard input,
    output and error."""
    body = json.dumps({"command": command, "cwd": cwd, "environ": environ}).encode()
    socket.send_fds(server, [NUMBER.pack(len(body))], files)
    server.sendall(body)
    return number(server)


def number(server: socket.socket) -> int:
    """What the server says next: the process that it started, and then what came of it, as `os.wait` has it."""
    found = server.recv(NUMBER.size, socket.MSG_WAITALL)
    if len(found) < NUMBER.size:
        raise RuntimeError("the fork server has ended")
    return int(NUMBER.unpack(found)[0])


def main(address: str, name: str, module: str) -> None:
    """Run the module with the arguments of this process, and end as it does."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    process = ask(server, [module, name, *sys.argv[1:]], os.getcwd(), dict(os.environ), [0, 1, 2])
    for passed_on in (signal.SIGINT, signal.SIGTERM):
        signal.signal(passed_on, lambda told, _: os.kill(process, told))
    code = os.waitstatus_to_exitcode(number(server))
    if code < 0:
        if -code in (signal.SIGINT, signal.SIGTERM):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
