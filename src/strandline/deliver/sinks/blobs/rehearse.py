"""Builds chunks for `verify` without sending: what an object would be, and whether the existing one has the same
rows.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.core.errors import StorageError
from strandline.deliver.sink import Conflict, Landed, Outcome, Parcel, TryLater
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.blobs.decode import decompressing
from strandline.deliver.sinks.blobs.encode import Format, encode, identity_of

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.deliver.sinks.blobs.blob_sink import BlobStore


class _Nowhere:
    def write(self, data: Any, /) -> int:
        return len(data)


def rehearse(how: Format, header: tuple[str, ...], parcel: Parcel) -> Landed:
    encoded = encode(parcel.rows, how, header, identity_of(parcel.address, parcel.range), _Nowhere())
    return Landed(encoded.count, encoded.digest, encoded.size)


@dataclass(frozen=True, slots=True)
class ObjectComparison:
    """Encodes both sides again, with the libraries of today."""

    place: BlobStore
    how: Format
    header: tuple[str, ...]

    def send(self, parcel: Parcel) -> Outcome:
        name = f"{names.lane_folder(parcel.address)}/{names.object_name(parcel.range, self.how.extension)}"
        try:
            body = self.place.read(name)
        except StorageError as e:
            return TryLater(e.message)
        if body is None:
            return TryLater(f"{name} is gone")
        mine = self._plain(parcel.rows, parcel)
        if (self._theirs(body, name, parcel)) != mine:
            return Conflict((parcel.range,))
        return Landed(parcel.rows.num_rows, "", len(body), repeat=True)

    def _plain(self, rows: pa.Table, parcel: Parcel) -> str:
        plain = replace(self.how, compression="none")
        return encode(rows, plain, self.header, identity_of(parcel.address, parcel.range), _Nowhere()).digest

    def _theirs(self, body: bytes, name: str, parcel: Parcel) -> str | None:
        if self.how.name == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                return self._plain(pq.read_table(pa.BufferReader(body), use_threads=False), parcel)
            except (pa.ArrowException, OSError):
                return None
        text = hashlib.sha256()
        with decompressing(io.BytesIO(body), names.extension_of(name)) as plain:
            while piece := plain.read(1 << 20):
                text.update(piece)
        return f"sha256:{text.hexdigest()}"

    def close(self) -> None:
        return None
