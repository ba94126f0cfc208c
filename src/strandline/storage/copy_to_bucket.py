"""Copies local files into a bucket, several at a time. The store checks each body against its MD5; what is there
already, with the same size and MD5, is not sent again."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path

from strandline.core.errors import StorageError
from strandline.core.settings.lake_config import WarehouseSettings
from strandline.storage.objects import explained
from strandline.storage.s3_client import RequestFailed, S3Client
from strandline.storage.s3_settings import RECONCILE_LIMITS, S3Settings, split_url

AT_ONCE = 8
_PUT_BYTES_MAX = 5 << 30  # of one request; a store refuses more
_READ_BYTES = 1 << 20


def check_size(path: Path, size: int) -> None:
    """Raises StorageError for a file that a bucket does not take in one request."""
    if size > _PUT_BYTES_MAX:
        raise StorageError(
            f"{path} has {size:,} bytes, and a bucket takes at most {_PUT_BYTES_MAX:,} in one request",
            hint="Rewrite the table with smaller files (write.target-file-size-bytes), and expire older snapshots.",
        )


class BucketCopy:
    def __init__(self, warehouse: WarehouseSettings) -> None:
        self._bucket, prefix = split_url(warehouse.url)
        self._prefix = prefix.strip("/")
        self._client = S3Client(S3Settings.of_warehouse(warehouse), RECONCILE_LIMITS)
        self._present: Mapping[str, tuple[int, str]] = {}
        self.sent_files = 0
        self.sent_bytes = 0

    def list_present(self) -> dict[str, int]:
        """The names and sizes of what is there. Raises StorageError."""
        start = len(self._key(""))
        with self._explained():
            self._present = {
                entry["Key"][start:]: (int(entry["Size"]), str(entry.get("ETag", "")).strip('"'))
                for entry in self._client.list_objects(self._bucket, self._key(""))
            }
        return {name: size for name, (size, _) in self._present.items()}

    def run(self, jobs: Iterable[Callable[[], int]], on_bytes: Callable[[int], None]) -> None:
        """Runs the jobs, each of which returns how many bytes it dealt with. The first that fails ends all."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy") as pool:
            running: set[Future[int]] = set()
            try:
                for job in jobs:
                    running.add(pool.submit(job))
                    if len(running) >= 2 * AT_ONCE:
                        ended, running = wait(running, return_when=FIRST_COMPLETED)
                        for future in ended:
                            on_bytes(future.result())
                for future in running:
                    on_bytes(future.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def copy_file(self, path: Path, name: str) -> int:
        size = path.stat().st_size
        check_size(path, size)
        digest = hashlib.md5(usedforsecurity=False)
        with path.open("rb") as file:
            while some := file.read(_READ_BYTES):
                digest.update(some)
        if not self._has(name, size, digest.hexdigest()):
            with self._explained():
                self._put_file(path, name, base64.b64encode(digest.digest()).decode())
            self._count(size)
        return size

    def put(self, name: str, body: bytes) -> int:
        digest = hashlib.md5(body, usedforsecurity=False)
        if not self._has(name, len(body), digest.hexdigest()):
            with self._explained():
                self._client.retry(
                    "put_object", Bucket=self._bucket, Key=self._key(name), Body=body,
                    ContentMD5=base64.b64encode(digest.digest()).decode(),
                )  # fmt: skip
            self._count(len(body))
        return len(body)

    def _put_file(self, path: Path, name: str, md5: str) -> None:
        for attempt in RECONCILE_LIMITS.attempts():
            try:
                with path.open("rb") as body:
                    self._client.call(
                        "put_object", Bucket=self._bucket, Key=self._key(name), Body=body, ContentMD5=md5
                    )
                return
            except RequestFailed as e:
                if attempt.is_last or not e.is_passing:
                    raise

    def _has(self, name: str, size: int, md5: str) -> bool:
        return self._present.get(name) == (size, md5)

    def _count(self, size: int) -> None:
        self.sent_files += 1  # for people: two threads may count one file less
        self.sent_bytes += size

    def _explained(self) -> AbstractContextManager[None]:
        return explained(f"the bucket {self._bucket}", hint="Check warehouse.url, its credentials and its endpoint.")

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name
