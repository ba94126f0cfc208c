"""Views of a catalog beyond this machine: they own folders as well, and one that cannot be read ends nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyiceberg.exceptions import NoSuchViewError, ServerError

from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog


class Server:
    """As much of a catalog as is asked for views."""

    def list_namespaces(self, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [] if parent else [("ns",)]

    def list_views(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [(*namespace, name) for name in ("whole", "gone", "damaged", "away")]

    def load_view(self, name: tuple[str, ...]) -> Any:
        match name[-1]:
            case "gone":
                raise NoSuchViewError("dropped since it was listed")
            case "damaged":
                raise KeyError("location")
            case "away":
                raise ServerError("500")
        return SimpleNamespace(metadata=SimpleNamespace(location="s3://bucket/ns/whole"))


def test_a_view_that_is_dropped_is_nobodys_and_one_that_cannot_be_read_is_somewhere() -> None:
    found = PyIcebergCatalog(Server(), remote=True).view_locations()  # type: ignore[arg-type]
    assert found == {"ns.away": None, "ns.damaged": None, "ns.whole": "s3://bucket/ns/whole"}
