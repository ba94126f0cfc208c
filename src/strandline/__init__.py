"""Strandline delivers every row of an Apache Iceberg lake to every sink exactly once, and only once it is settled."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.lake import open_lake as open
    from strandline.lake_admin import init_lake
    from strandline.read.source.register import register
    from strandline.read.source.spark_source import StrandlineSource
    from strandline.replicate.state import ReplicationState

__all__ = ["Lake", "ReplicationState", "StrandlineSource", "init_lake", "open", "register"]
__version__ = "0.1.0"

_PUBLIC = {
    "Lake": ("lake", "Lake"),
    "ReplicationState": ("replicate.state", "ReplicationState"),
    "StrandlineSource": ("read.source.spark_source", "StrandlineSource"),
    "init_lake": ("lake_admin", "init_lake"),
    "open": ("lake", "open_lake"),
    "register": ("read.source.register", "register"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used. Executors and worker processes import modules of this package, and
    must not wait the half second that importing settings and SQL takes."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, behind = _PUBLIC[name]
    return getattr(import_module(f"{__name__}.{module}"), behind)
