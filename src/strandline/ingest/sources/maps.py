"""Rewrites JSON objects that are maps as lists of keys and values, because Arrow's JSON parser does not support maps.

    {"id": 1, "tags": {"a": "x", "b": "y"}}
    {"id": 1, "tags": [{"key":"a","value":"x"},{"key":"b","value":"y"}]}

It works on a whole block at once, for maps that are top-level columns. The row parser reads rows with deeper maps. Text
outside these objects is not changed, so text that was not JSON before is not JSON after. Inside them, this module
checks whatever the rewriting could hide from the parser.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strandline.ingest.sources.columns import Unfit
from strandline.ingest.sources.lines import Bytes, LineBlock, Offsets

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = b"{}[]"

_STEP = np.zeros(256, np.int8)
_STEP[[_OPEN_OBJECT, _OPEN_LIST]] = 1
_STEP[[_CLOSE_OBJECT, _CLOSE_LIST]] = -1
_TOKEN = _STEP != 0
_TOKEN[[_COMMA, _COLON, _QUOTE]] = True
_SPACE = np.zeros(256, bool)
_SPACE[[9, 10, 13, 32]] = True


def rewrite_maps(block: LineBlock, columns: Sequence[str]) -> bytes:
    """The records of the block, with newlines between them, and with the objects of these columns rewritten. Raises
    Unfit."""
    start = int(block.starts[0])
    text = np.frombuffer(block.data, np.uint8)[start : int(block.ends[-1])]
    escapes = np.flatnonzero(text == _BACKSLASH)
    quotes, marks = _tokens(text, escapes)
    kinds = text[marks]
    steps = _STEP[kinds]
    depth = np.cumsum(steps, dtype=np.int32)
    _demand(_is_closed(depth, marks, quotes, block.ends - start))
    opens = _map_objects(text, marks, depth, quotes, escapes, columns)
    if not len(opens):
        return text.tobytes()
    closers = np.flatnonzero((depth == 1) & (steps < 0))
    closes = closers[np.searchsorted(closers, opens)]
    _demand(bool((kinds[closes] == _CLOSE_OBJECT).all()))
    empty = closes == opens + 1
    inside = np.flatnonzero((depth == 2) & (steps == 0))
    owner = np.searchsorted(opens, inside) - 1
    inside = inside[(owner >= 0) & (inside < closes[np.maximum(owner, 0)])]
    kind = kinds[inside]
    _check_pairs(kind, inside, opens[~empty], closes[~empty])
    return _replaced(
        text,
        [
            (marks[opens[empty]], b"["),
            (marks[closes[empty]], b"]"),
            (marks[opens[~empty]], b'[{"key":'),
            (marks[closes[~empty]], b"}]"),
            (marks[inside[kind == _COLON]], b',"value":'),
            (marks[inside[kind == _COMMA]], b'},{"key":'),
        ],
    )


def _tokens(text: Bytes, escapes: Offsets) -> tuple[Offsets, Offsets]:
    """The quotes that begin or end a string, and the structural characters outside strings."""
    tokens = np.flatnonzero(_TOKEN[text])
    if len(escapes):
        # a quote after an odd number of backslashes neither begins nor ends a string
        run_ends = np.flatnonzero(np.diff(escapes, append=-1) != 1)
        run_lengths = np.diff(run_ends, prepend=-1)
        escaped = escapes[run_ends[run_lengths % 2 == 1]] + 1
        tokens = tokens[~np.isin(tokens, escaped, assume_unique=True)]
    is_quote = text[tokens] == _QUOTE
    outside = np.cumsum(is_quote, dtype=np.uint8) % 2 == 0  # parity survives the overflow
    return tokens[is_quote], tokens[outside & ~is_quote]


def _is_closed(depth: npt.NDArray[np.int32], marks: Offsets, quotes: Offsets, ends: Offsets) -> bool:
    """Whether all records close the objects, lists and strings that they open. Otherwise a damaged record would change
    how the next one is read."""
    last = np.searchsorted(marks, ends) - 1
    return bool((depth[last] == 0).all() and (np.searchsorted(quotes, ends) % 2 == 0).all())


def _map_objects(
    text: Bytes, marks: Offsets, depth: npt.NDArray[np.int32], quotes: Offsets, escapes: Offsets, columns: Sequence[str]
) -> Offsets:
    """Indexes into `marks` of the braces that open a map."""
    colons = np.flatnonzero((depth == 1) & (text[marks] == _COLON))
    closing = np.searchsorted(quotes, marks[colons]) - 1
    _demand(bool(((closing > 0) & (closing % 2 == 1)).all()))
    key_starts, key_ends = quotes[closing - 1] + 1, quotes[closing]
    # a name with escapes would not be recognized as a map's, and its value would not be checked
    _demand(bool((np.searchsorted(escapes, key_starts) == np.searchsorted(escapes, key_ends)).all()))
    is_map = np.zeros(len(colons), bool)
    for name in columns:
        is_map |= _is_name(text, key_starts, key_ends, name.encode())
    values = marks[colons[is_map]] + 1
    while (blank := _SPACE[text[values]]).any():
        values = values + blank
    objects = text[values] == _OPEN_OBJECT
    _demand(bool((objects | (text[values] == ord("n"))).all()))
    braces: Offsets = colons[is_map][objects] + 1
    return braces


def _is_name(text: Bytes, starts: Offsets, ends: Offsets, name: bytes) -> npt.NDArray[np.bool_]:
    """Which of the texts between these positions are the name."""
    equal: npt.NDArray[np.bool_] = ends - starts == len(name)
    candidates = starts[equal]
    equal[equal] = (text[candidates[:, None] + np.arange(len(name))] == np.frombuffer(name, np.uint8)).all(axis=1)
    return equal


def _check_pairs(kind: Bytes, inside: Offsets, opens: Offsets, closes: Offsets) -> None:
    """Raises Unfit unless each object has colon, comma, colon … colon. Otherwise `{"a"}` would become an entry without
    a value."""
    first = np.searchsorted(inside, opens)
    count = np.searchsorted(inside, closes) - first
    _demand(bool((count % 2 == 1).all()))
    position = np.arange(len(inside)) - np.repeat(first, count)
    _demand(bool(((kind == _COLON) == (position % 2 == 0)).all()))


def _replaced(text: Bytes, replacements: list[tuple[Offsets, bytes]]) -> bytes:
    positions = np.concatenate([at for at, _ in replacements])
    growth = np.concatenate([np.full(len(at), len(new) - 1) for at, new in replacements])
    order = np.argsort(positions)
    shifts = np.empty_like(positions)
    shifts[order] = np.cumsum(growth[order]) - growth[order]
    out = np.empty(len(text) + int(growth.sum()), np.uint8)
    old = np.ones(len(out), bool)
    filled: list[tuple[npt.NDArray[np.int64], bytes]] = []
    done = 0
    for at, new in replacements:
        first = at + shifts[done : done + len(at)]
        done += len(at)
        spans = first[:, None] + np.arange(len(new))
        old[spans[:, 1:]] = False
        filled.append((spans, new))
    out[old] = text
    for spans, new in filled:
        out[spans] = np.frombuffer(new, np.uint8)
    return out.tobytes()


def _demand(holds: bool) -> None:
    if not holds:
        raise Unfit
