"""Certificates for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """Of this machine's own address, or of another name (`DNS:…`), signed by itself; and its key."""
    folder.mkdir()
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
         "-addext", f"subjectAltName={name}", "-out", str(files[0]), "-keyout", str(files[1])],
        check=True, capture_output=True,
    )  # fmt: skip
    return files
