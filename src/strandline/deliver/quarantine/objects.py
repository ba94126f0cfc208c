"""Where the content of rows that were set aside lies: objects in the warehouse, one for each.

    _strandline/quarantine/<sink's instance>/<generation>/<hash of the lane>/<number>.arrow

An object is durable before the ledger tells of it. One that the ledger does not know is from a deliverer that died in
between, and is replaced by the next one.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

from strandline.core.settings import LakeConfig
from strandline.deliver.sink import Address
from strandline.storage import objects
from strandline.storage.objects import ObjectStore, explained

_HASH_DIGITS = 16


def object_name(address: Address, number: int) -> str:
    """Relative to the warehouse."""
    lane = hashlib.sha256(f"{address.dataset}\0{address.partition}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{folder_name(address.instance)}/{address.generation}/{lane}/{number}.arrow"


def folder_name(instance: str) -> str:
    return f"_strandline/quarantine/{instance}"


@dataclass(frozen=True, slots=True)
class QuarantineObjects:
    """Raises `StorageError`."""

    objects: ObjectStore

    def put(self, name: str, body: bytes) -> None:
        """Durable when it returns; replaces what is there."""
        with self._explained(name):
            self.objects.put(name, body)

    def get(self, name: str) -> bytes | None:
        with self._explained(name):
            return self.objects.get(name)

    def remove(self, name: str) -> None:
        """Fine where there is none."""
        with self._explained(name):
            self.objects.remove([name])

    def names(self, instance: str) -> list[str]:
        """Of all objects of a sink, whether the ledger tells of them or not, and of what a killed put left behind."""
        with self._explained(folder_name(instance)):
            return [stored.name for stored in self.objects.list_below(folder_name(instance))]

    def place(self, name: str) -> str:
        """What a person looks for."""
        return self.objects.url(name)

    def _explained(self, name: str) -> AbstractContextManager[None]:
        return explained(f"{self.place(name)} cannot be read or written")


def open_objects(config: LakeConfig) -> QuarantineObjects:
    return QuarantineObjects(objects.open_objects(config))
