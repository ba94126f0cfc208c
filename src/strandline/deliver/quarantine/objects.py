"""Stores the content of quarantined rows: objects in the warehouse, one for each row.

    _strandline/quarantine/<sink's instance>/<generation>/<hash of the lane>/<sequence number>.arrow

An object is durable before the ledger records it. An object that the ledger does not know is from a deliverer that died
in between; the next deliverer replaces it.
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
    """All methods raise `StorageError`."""

    objects: ObjectStore

    def put(self, name: str, body: bytes) -> None:
        """Durable when it returns; replaces an existing object."""
        with self._explained(name):
            self.objects.put(name, body)

    def get(self, name: str) -> bytes | None:
        with self._explained(name):
            return self.objects.get(name)

    def remove(self, name: str) -> None:
        """Does nothing if there is no such object."""
        with self._explained(name):
            self.objects.remove([name])

    def names(self, instance: str) -> list[str]:
        """The names of all objects of a sink, known to the ledger or not, and of files that a killed put left."""
        with self._explained(folder_name(instance)):
            return [stored.name for stored in self.objects.list_below(folder_name(instance))]

    def place(self, name: str) -> str:
        return self.objects.url(name)

    def _explained(self, name: str) -> AbstractContextManager[None]:
        return explained(f"{self.place(name)} cannot be read or written")


def open_objects(config: LakeConfig) -> QuarantineObjects:
    return QuarantineObjects(objects.open_objects(config))
