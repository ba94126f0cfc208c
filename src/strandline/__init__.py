"""Strandline delivers every row of an Apache Iceberg lake to every sink exactly once, and only once it is settled."""

from strandline.founding import init_lake
from strandline.lake import Lake
from strandline.lake import open_lake as open

__all__ = ["Lake", "init_lake", "open"]
__version__ = "0.1.0"
