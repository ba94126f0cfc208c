"""Bodies of a few bytes that stand for very many. Whatever is sent, reading and spooling it takes at most twice the
limit of a body. `make torture` also sends such bodies, several at once, to a whole receiver in a process of its own."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import zstandard

import strandline
from strandline.core.errors import BadRow, StrandlineError
from strandline.core.forward_protocol import ARROW, JSON_LINES, KeyIdentity
from strandline.iceberg.schema.columns import Column
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.sources.body import read_json_lines
from strandline.ledger.receive.receipts import Note, TokenFingerprint
from strandline.receive.body.decompress import TooLarge
from strandline.receive.body.parse import Packed, read_body
from strandline.receive.spool import Spool
from strandline.storage.objects import LocalObjects
from tests.campaign import TORTURE, scaled
from tests.conftest import MakeHome
from tests.e2e.receiver import receiving
from tests.receive.conftest import arrow

MIB = 1 << 20
BYTES_MAX = 32 * MIB
WIDE = {"type": "struct", "fields": [{"name": f"f{i}", "type": "long"} for i in range(500)]}


def columns_of(**types: Any) -> tuple[Column, ...]:
    return tuple(parse_columns([{"name": name, "type": kind} for name, kind in types.items()]))


def list_of(element: Any) -> dict[str, Any]:
    return {"type": "list", "element": element}


def _resident(what: str, pid: int | str = "self") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {what}")


def grown(do: Callable[[], object]) -> int:
    """By how many bytes the process grew, at its highest, while this ran. What is refused is fine."""
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # the highest is the present from now on
    before = _resident("VmRSS")
    with suppress(BadRow, TooLarge):
        do()
    return _resident("VmHWM") - before


def take(body: bytes, columns: tuple[Column, ...], form: str, folder: Path, encoding: str = "identity") -> int:
    """Read, and spooled, as the receiver does it; how many rows."""
    rows = read_body(Packed(body, form, encoding, None), columns, BYTES_MAX, read_json_lines)
    note = Note(KeyIdentity("k"), TokenFingerprint("first", "0123456789abcdef"), rows.num_rows, "sha256:d", len(body))
    Spool(LocalObjects(folder)).write("table", rows, note)
    return rows.num_rows


def nulls(count: int) -> Any:
    return pa.Array.from_buffers(pa.null(), count, [None])


def one_list(values: Any) -> Any:
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def hollow(count: int) -> Any:
    return pa.Array.from_buffers(pa.struct([]), count, [None])


def stream(batches: list[Any], custom_metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch, custom_metadata=custom_metadata)
    return out.getvalue().to_pybytes()


BOMBS: dict[str, tuple[bytes, tuple[Column, ...], str]] = {
    "a list of nulls": (
        arrow(pa.table({"c": one_list(nulls(50_000_000))})), columns_of(c=list_of("long")), ARROW
    ),
    "a list of nulls that are wide": (
        arrow(pa.table({"c": one_list(nulls(200_000))})), columns_of(c=list_of(WIDE)), ARROW
    ),
    "structs without fields": (
        arrow(pa.table({"c": one_list(hollow(200_000))})), columns_of(c=list_of(WIDE)), ARROW
    ),
    "rows of structs without fields": (arrow(pa.table({"c": hollow(200_000)})), columns_of(c=WIDE), ARROW),
    "20,000 batches, most of them empty": (
        stream([pa.record_batch({"c0": pa.array([1] * (n % 2), pa.int8())}) for n in range(20_000)]),
        columns_of(**{f"c{i}": "long" for i in range(30)}), ARROW
    ),
    "small numbers that become decimals": (
        arrow(pa.table({"c": pa.array(np.zeros(16 * MIB, np.int8))})), columns_of(c="decimal(38,0)"), ARROW
    ),
    "bytes that become uuids": (
        arrow(pa.table({"c": pa.array([bytes(16)] * 800_000, pa.binary(16))})), columns_of(c="uuid"), ARROW
    ),
    "nulls in a list of wide structs": (
        b'{"c":[' + b"null," * 200_000 + b"null]}\n", columns_of(c=list_of(WIDE)), JSON_LINES
    ),
    "lists of nulls in many lines": (
        b'{"c":[' + b"null," * 200 + b"null]}\n" * 1000, columns_of(c=list_of(WIDE)), JSON_LINES
    ),
    "braces": (b"{}\n" * 1_000_000, columns_of(**{f"c{i}": "long" for i in range(100)}), JSON_LINES),
    "lists in lists for the judge": (
        b'{"c":[' + b"[]," * 3_000_000 + b"[]],\"d\":1}\n", columns_of(c=list_of(list_of("long"))), JSON_LINES
    ),
    "one long line": (b'{"c":"' + b"x" * (15 * MIB) + b'"}\n', columns_of(c="string"), JSON_LINES),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_no_more_than_twice_the_limit(name: str, tmp_path: Path) -> None:
    body, columns, form = BOMBS[name]
    assert grown(lambda: take(body, columns, form, tmp_path)) <= 2 * BYTES_MAX


def test_compression_that_an_old_version_hides_is_refused() -> None:
    hidden = {"ARROW:experimental_compression": "zstd"}
    body = stream([pa.record_batch({"n": [1]})], hidden, metadata_version=pa.MetadataVersion.V4)
    with pytest.raises(BadRow, match="compressed"):
        read_body(Packed(body, ARROW, "identity", None), columns_of(n="long"), BYTES_MAX, read_json_lines)


# --- whatever comes ---

LEAVES: list[Any] = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.decimal128(5, 2),
    pa.decimal256(60, 2), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.duration("s"), pa.month_day_nano_interval(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary(16), pa.large_binary(), pa.binary_view(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_binary()),
    pa.run_end_encoded(pa.int32(), pa.int64()), pa.struct([]),
]  # fmt: skip
KINDS = ["boolean", "int", "long", "float", "double", "decimal(38,2)", "date", "timestamp", "timestamptz", "string",
         "uuid", "fixed[16]", "binary"]  # fmt: skip


def a_type(chance: random.Random, depth: int = 0) -> Any:
    if depth > 3 or chance.random() < 0.5:
        return chance.choice(LEAVES)
    inner = a_type(chance, depth + 1)
    match chance.randrange(9):
        case 0:
            return pa.list_(inner)
        case 1:
            return pa.large_list(inner)
        case 2:
            return pa.list_(inner, chance.choice([0, 3]))
        case 3:
            return pa.list_view(inner)
        case 4:
            return pa.map_(pa.string(), inner)
        case 5:
            return pa.sparse_union([pa.field("a", inner), pa.field("b", a_type(chance, depth + 1))])
        case 6:
            return pa.dense_union([pa.field("a", inner), pa.field("b", a_type(chance, depth + 1))])
        case 7:
            return pa.large_list_view(inner)
    return pa.struct({f"f{i}": a_type(chance, depth + 1) for i in range(chance.randrange(4))})


def an_array(chance: random.Random, kind: Any) -> Any:
    """Long where that takes no room: here, that is."""
    if pa.types.is_null(kind):
        return nulls(chance.choice([0, 5, 100_000, 30_000_000]))
    if kind == pa.struct([]):
        return hollow(chance.choice([5, 100_000, 3_000_000]))
    if pa.types.is_large_list(kind):
        return one_list(an_array(chance, kind.value_type))
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [an_array(chance, f.type) for f in kind]
        shortest = min(map(len, children))
        return pa.StructArray.from_arrays([c.slice(0, shortest) for c in children], fields=list(kind))
    if pa.types.is_union(kind):
        return a_union(chance, kind)
    if chance.random() < 0.7 and (shared := one_value(chance, kind)) is not None:
        return shared
    return pa.nulls(chance.choice([0, 1, 1000, 50_000]), kind)


def one_value(chance: random.Random, kind: Any) -> Any | None:
    """A long value that is written once and stands in every row, or that would have to be; None for other types."""
    count, size = chance.choice([(1, 8 * MIB), (1000, MIB), (1_000_000, 1000)])
    value, t = b"x" * size, pa.types
    if t.is_dictionary(kind):
        indices = pa.array(np.zeros(count, kind.index_type.to_pandas_dtype()))
        return pa.DictionaryArray.from_arrays(indices, pa.array([value], kind.value_type))
    if kind in (pa.string_view(), pa.binary_view()):
        view = size.to_bytes(4, "little") + value[:4] + bytes(8)
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(view * count), pa.py_buffer(value)])
    if t.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([1], pa.int64()))
    if t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind):
        return pa.array([value] * (8 * MIB // size), kind)
    if t.is_time(kind):
        return pa.array(np.zeros(MIB, np.int32 if t.is_time32(kind) else np.int64)).cast(kind)
    return None


def a_union(chance: random.Random, kind: Any) -> Any:
    """Of a dense one the children may be far longer than itself, or shared by all of its values."""
    children = [an_array(chance, kind.field(n).type) for n in range(kind.num_fields)]
    shortest = min(map(len, children))
    if kind.mode == "sparse":
        which = pa.array(np.arange(shortest) % 2, pa.int8())
        return pa.UnionArray.from_sparse(which, [c.slice(0, shortest) for c in children], ["a", "b"])
    count = chance.choice([5, 1000, 1_000_000]) if shortest else 0
    which = pa.array(np.zeros(count, np.int8))
    return pa.UnionArray.from_dense(which, pa.array(np.zeros(count, np.int32)), children, ["a", "b"])


def a_column(chance: random.Random, given: Any) -> Any:
    """One that such an array fits, as a rule."""
    t = pa.types
    if t.is_list(given) or t.is_large_list(given):
        return list_of(a_column(chance, given.value_type))
    if t.is_map(given):
        return {"type": "map", "key": "string", "value": a_column(chance, given.item_type)}
    if t.is_struct(given):
        known = [{"name": f.name, "type": a_column(chance, f.type)} for f in given]
        return {"type": "struct", "fields": known + [{"name": f"m{i}", "type": "double"} for i in range(40)]}
    if t.is_null(given):
        return chance.choice([WIDE, list_of("long"), "decimal(38,2)", "string"])
    fitting = {pa.bool_(): "boolean", pa.int8(): "decimal(38,2)", pa.float64(): "float", pa.date64(): "date",
               pa.decimal128(5, 2): "decimal(38,2)", pa.binary(16): "uuid", pa.large_string(): "string",
               pa.large_binary(): "binary", pa.dictionary(pa.int8(), pa.string()): "string"}  # fmt: skip
    return fitting.get(given) or chance.choice(KINDS)


def an_arrow_body(chance: random.Random) -> tuple[bytes, tuple[Column, ...]]:
    kind = a_type(chance)
    columns = columns_of(c=a_column(chance, kind), other=chance.choice([WIDE, "long"]))
    return _arrow_stream(chance, kind), columns


def _arrow_stream(chance: random.Random, kind: Any) -> bytes:
    array = an_array(chance, kind)
    old = chance.random() < 0.3
    options: dict[str, Any] = {"metadata_version": pa.MetadataVersion.V4 if old else pa.MetadataVersion.V5}
    options["use_legacy_format"] = chance.random() < 0.2
    if not old:
        options["compression"] = chance.choice([None, None, None, "lz4", "zstd"])
    batch = pa.record_batch([array], names=["c"])
    hidden = {"ARROW:experimental_compression": chance.choice(["zstd", "lz4"])} if chance.random() < 0.2 else None
    batches = [batch] * chance.choice([1, 1, 3, 500 if batch.get_total_buffer_size() < 10_000 else 2])
    return stream(batches, hidden if old else None, **options)


def compressed(chance: random.Random, body: bytes) -> tuple[bytes, str]:
    match chance.randrange(6):
        case 0:
            return zstandard.compress(body), "zstd"
        case 1:
            return gzip.compress(body, 1), "gzip"
    return body, "identity"


def a_json_body(chance: random.Random) -> tuple[bytes, tuple[Column, ...]]:
    kind = a_column(chance, a_type(chance))
    return _json_text(chance), columns_of(c=kind, other=WIDE)


def _json_text(chance: random.Random) -> bytes:
    value: Any = [None] * chance.choice([0, 3, 20_000])
    for _ in range(chance.randrange(4)):
        value = chance.choice([[value] * chance.choice([1, 3]), {"f0": value}, {"k": value}])
    line = json.dumps({"c": value}).encode()[: 2 * MIB] + b"\n"
    return line * min(chance.choice([1, 20, 100_000]), 1 + 8 * MIB // len(line))


@pytest.mark.timeout(scaled(900, 3600))
def test_whatever_comes_memory_stays_within_twice_the_limit(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32) if TORTURE else 1
    chance = random.Random(seed)
    taken = 0
    for n in range(scaled(30, 3_000)):
        form = JSON_LINES if n % 4 == 3 else ARROW
        try:
            body, columns = a_json_body(chance) if form == JSON_LINES else an_arrow_body(chance)
        except (pa.ArrowException, NotImplementedError):
            continue  # pyarrow itself cannot make one of these
        packed, encoding = compressed(chance, body)
        count: list[int] = []
        size = grown(lambda: count.append(take(packed, columns, form, tmp_path, encoding)))  # noqa: B023
        assert size <= 2 * BYTES_MAX, f"seed {seed}, body {n}: {size:,} bytes for {columns}"
        taken += bool(count)
        for file in (f for f in tmp_path.rglob("*") if f.is_file()):
            file.unlink()
    assert taken > 2, "hardly anything was read at all"


AT_ONCE = 4
DATASETS = 12
_STATEMENTS = {429, 503}
"""Come again."""


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_whole_receiver_stays_within_twice_the_limit_for_each_body_at_once(
    tmp_path: Path, make_home: MakeHome
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    limits = {"rows_bytes_max": BYTES_MAX, "requests_at_once_max": AT_ONCE, "spool_bytes_max": 1 << 50}
    make_home(tmp_path, {"receive": limits | {"spool_dataset_bytes_max": 1 << 50, "retry_after_seconds": 1}})
    with strandline.init_lake(tmp_path) as lake:
        for n in range(DATASETS):
            lake.create_dataset(f"d{n}", _columns_with_a_type(chance, n))
        _, secret = lake.receiver.create_token("sender", None)
    kinds = [_KINDS_OF[n] for n in range(DATASETS)]
    answers: Counter[int] = Counter()
    with receiving(tmp_path, tmp_path / "log", "--no-ingest") as receiver:
        base, pid = receiver.url, receiver.process.pid
        _post(base, secret, 0, b"{}\n", JSON_LINES, "identity")  # whatever is loaded with the first one
        before = _resident("VmRSS", pid)
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        with ThreadPoolExecutor(AT_ONCE) as senders:
            for _ in range(200):
                bodies = [_a_body_for(chance, kinds) for _ in range(2 * AT_ONCE)]
                sent = [senders.submit(_post, base, secret, *body) for body in bodies if body is not None]
                answers.update(s.result() for s in sent)
                grown_by = _resident("VmHWM", pid) - before
                assert grown_by <= 2 * BYTES_MAX * AT_ONCE, f"seed {seed}: {grown_by:,} bytes after {answers}"
                for file in (tmp_path / "warehouse").rglob("*.arrow"):  # nobody ingests, and the disk is small
                    os.truncate(file, 0)
        assert receiver.process.poll() is None
    assert answers[202] > 20 and answers[400] > 20 and not answers[500], answers


_KINDS_OF: dict[int, Any] = {}


def _columns_with_a_type(chance: random.Random, n: int) -> tuple[Column, ...]:
    """One that a table can have; the Arrow type that fits it is kept."""
    while True:
        kind = _KINDS_OF[n] = a_type(chance)
        with suppress(StrandlineError):
            return columns_of(c=a_column(chance, kind), other=chance.choice([WIDE, "long"]))


def _a_body_for(chance: random.Random, kinds: list[Any]) -> tuple[int, bytes, str, str] | None:
    n = chance.randrange(len(kinds))
    form = chance.choice([ARROW, ARROW, JSON_LINES])
    try:
        body = _json_text(chance) if form == JSON_LINES else _arrow_stream(chance, kinds[n])
    except (pa.ArrowException, NotImplementedError):
        return None
    packed, encoding = compressed(chance, body)
    return n, packed, form, encoding


def _post(base: str, secret: str, n: int, body: bytes, form: str, encoding: str) -> int:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": form, "Idempotency-Key": uuid.uuid4().hex}
    if encoding != "identity":
        headers["Content-Encoding"] = encoding
    while True:
        answer = httpx.post(f"{base}/v1/datasets/d{n}/rows", content=body, headers=headers, timeout=600)
        if answer.status_code not in _STATEMENTS:
            return answer.status_code
        time.sleep(0.05)
