"""The names of a sink's objects, the same for folders and buckets. Pure.

    <dataset>/_strandline.json                          who claimed the destination
    <dataset>/_generations/<n>                          the highest counts
    <dataset>/<partition>/<lo>-<hi>.<ext>               the rows of one chunk; names sort as their numbers do
    <dataset>/<partition>/_marks/<seq>.json             all rows up to <seq> are delivered; the highest counts
    <dataset>/<partition>/_cuts/<seq>.json              S3 only: how the lane is cut into chunks after <seq>
    generation=<n>/<dataset>/<partition>/…              the same for every generation but the first

Anything else there is ignored.
"""

from __future__ import annotations

import hashlib
import re

from strandline.core.partition import encode_part
from strandline.core.types import SEQ_MAX, Seq, SeqRange
from strandline.deliver.sink import Address
from strandline.storage.s3_settings import store_name

NOT_PARTITIONED_FOLDER = "all"  # an encoded partition contains `=`, so none has this name
MARKS = "_marks"
GENERATIONS = "_generations"
TERMS = "_terms"
CUTS = "_cuts"
CLAIM = "_strandline.json"

EXTENSIONS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst", "csv", "csv.gz", "csv.zst")

_COMPONENT_BYTES_MAX = 200  # file systems allow 255; the rest is for what tools add in front or behind
# For a whole partition: S3 allows 1024 for a key, which also holds prefix, dataset and object name.
_PARTITION_BYTES_MAX = 600
_CUT_BYTES = 120
_HASH_DIGITS = 40

_OBJECT = re.compile(rf"(\d{{19}})-(\d{{19}})\.(?:{'|'.join(re.escape(e) for e in EXTENSIONS)})", re.ASCII)
_MARK = re.compile(r"(\d{19})\.json", re.ASCII)
_GENERATION = re.compile(r"\d{1,9}", re.ASCII)


def shorten(encoded: str, bytes_max: int = _COMPONENT_BYTES_MAX) -> str:
    """Long names are truncated and get a hash. `~` is never in an encoded value, so no short name looks like one."""
    if len(encoded.encode()) <= bytes_max:
        return encoded
    return f"{encoded[:_CUT_BYTES].replace('/', '%2F')}~{hashlib.sha256(encoded.encode()).hexdigest()[:_HASH_DIGITS]}"


def dataset_folder(dataset: str) -> str:
    return shorten(encode_part(dataset))


def partition_folder(partition: str) -> str:
    if not partition:
        return NOT_PARTITIONED_FOLDER
    folder = "/".join(shorten(part) for part in partition.split("/"))
    return folder if len(folder) <= _PARTITION_BYTES_MAX else shorten(partition)


def lane_folder(address: Address) -> str:
    """Relative to the path or prefix that the sink was given."""
    generation = "" if address.generation == 1 else f"generation={address.generation}/"
    return f"{generation}{dataset_folder(address.dataset)}/{partition_folder(address.partition)}"


def names_a_generation(path: str) -> bool:
    """Whether a path leads into a folder for later generations of a sink."""
    return re.search(r"(?:^|/)generation=\d+(?:/|$)", path) is not None


def object_name(rows: SeqRange, extension: str) -> str:
    return f"{rows.lo:019d}-{rows.hi:019d}.{extension}"


def ends_beyond(name: str, mark: Seq) -> bool:
    """Whether a name may be of an object that ends beyond the watermark; fast, for folders with a million of them."""
    return name[20:39] > f"{mark:019d}"


def object_range(name: str) -> SeqRange | None:
    """The range that an object holds; None for a name that is not ours."""
    match = _OBJECT.fullmatch(name)
    if match is None:
        return None
    lo, hi = int(match[1]), int(match[2])
    return SeqRange(Seq(lo), Seq(hi)) if 1 <= lo <= hi <= SEQ_MAX else None


def extension_of(name: str) -> str:
    return name.partition(".")[2]


def watermark_name(mark: Seq) -> str:
    return f"{mark:019d}.json"


def parse_watermark_name(name: str, *, least: int = 1) -> Seq | None:
    match = _MARK.fullmatch(name)
    if match is None:
        return None
    mark = int(match[1])
    return Seq(mark) if least <= mark <= SEQ_MAX else None


def step_of(name: str) -> int | None:
    """The generation or the term that a name means."""
    return int(name) if _GENERATION.fullmatch(name) and int(name) > 0 else None


def file_destination(folder: str, dataset: str) -> str:
    return f"file://{folder.rstrip('/')}/{dataset_folder(dataset)}"


def s3_destination(bucket: str, prefix: str, dataset: str, endpoint: str | None) -> str:
    inside = "/".join(filter(None, (bucket, prefix, dataset_folder(dataset))))
    return f"s3://{inside}@{store_name(endpoint)}"


def place_of(url: str, endpoint: str | None) -> str:
    """The URL of a folder or bucket, such as the warehouse's, in the form of a destination."""
    return f"{url.rstrip('/')}@{store_name(endpoint)}" if url.startswith("s3://") else url


def overlaps(a: str, b: str) -> bool:
    """Whether two places (destinations, or results of `place_of`) are the same, or one is inside the other. A URL that
    is posted to contains nothing, whatever its path looks like."""
    if a.startswith(("http://", "https://")):
        return a == b
    (store_a, parts_a), (store_b, parts_b) = _where(a), _where(b)
    return store_a == store_b and all(one == other for one, other in zip(parts_a, parts_b, strict=False))


def _where(place: str) -> tuple[tuple[str, str], list[str]]:
    """Scheme and host (of a bucket: its endpoint), and the parts of the path."""
    scheme, _, rest = place.partition("://")
    host = ""
    if scheme == "s3":
        rest, _, host = rest.rpartition("@")
    return (scheme, host), [part for part in rest.split("/") if part]
