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

_DOORS = {
    "Lake": ("lake", "Lake"),
    "ReplicationState": ("replicate.state", "ReplicationState"),
    "StrandlineSource": ("read.source.spark_source", "StrandlineSource"),
    "init_lake": ("lake_admin", "init_lake"),
    "open": ("lake", "open_lake"),
    "register": ("read.source.register", "register"),
}


def __getattr__(name: str) -> Any:
    """A door opens when somebody comes: executors and worker processes import a module of this package each, and the
    half second that settings and SQL take would be theirs as well."""
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, behind = _DOORS[name]
    return getattr(import_module(f"{__name__}.{module}"), behind)
