"""Decides which files are worth rewriting, and which go together. Pure.

Files of a partition are ordered by their sequence numbers. Only neighbours are merged, so that the new files overlap as
little as the old ones: reading a few sequence numbers opens as few files as before. Files that are not known to be
sorted, or that overlap, come from another tool's compaction or from an UPDATE; their rows are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from strandline.iceberg.metadata.live_files import FilePart, LiveFile, RowOrder, overlapping

ONE_TASK_SHARE = 2  # overlapping files of more than this many target sizes are sorted by several tasks


@dataclass(frozen=True, slots=True)
class CompactOptions:
    file_bytes_target: int | None = None  # None: the table's own (`write.target-file-size-bytes`)
    small_share: float = 0.75  # a file below this share of the target is small
    files_min: int = 5  # fewer small files in a row are left alone, unless they fill a file
    manifests_max: int = 100
    commit_bytes_max: int = 16 << 30  # bytes replaced by one commit: what a refused commit or a crash can cost
    commit_files_max: int = 128  # new files in one commit


@dataclass(frozen=True, slots=True)
class SkippedFiles:
    partition: str
    files: int
    why: str


@dataclass(frozen=True, slots=True)
class CompactPlan:
    steps: tuple[tuple[FilePart, ...], ...]  # each is one Spark job and one commit
    skipped: tuple[SkippedFiles, ...]

    @property
    def pieces(self) -> Iterator[FilePart]:
        return (piece for step in self.steps for piece in step)


@dataclass(frozen=True, slots=True)
class _Knot:
    """Files whose sequence numbers overlap, directly or through others; mostly just one file."""

    files: tuple[LiveFile, ...]
    depth: int  # how many of them may contain the same sequence number

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)


def plan(files: Iterable[LiveFile], options: CompactOptions, target: int) -> CompactPlan:
    pieces: list[FilePart] = []
    skipped: list[SkippedFiles] = []
    for (_, partition), group in groupby(sorted(files, key=_place), key=lambda f: (f.spec, f.partition)):
        here = list(group)
        numbered = [f for f in here if f.lo is not None and f.hi is not None]
        if unnumbered := len(here) - len(numbered):
            why = "they have rows without a sequence number: adopt numbers them first"
            skipped.append(SkippedFiles(partition, unnumbered, why))
        knots = (_Knot(tuple(knot), _depth(knot)) for knot in overlapping(numbered, lambda f: (f.lo or 0, f.hi or 0)))
        for run in _runs(knots, options, target):
            chosen, left = _choose(run, partition, options, target)
            pieces += chosen
            skipped += left
    return CompactPlan(tuple(_steps(pieces, options)), tuple(skipped))


def _place(file: LiveFile) -> tuple[int, str, int, int, str]:
    return (file.spec, file.partition, file.lo or 0, file.hi or 0, file.location)


def _depth(files: Sequence[LiveFile]) -> int:
    # At the same sequence number, beginnings sort before ends: both files may contain it.
    edges = sorted([(f.lo or 0, 0) for f in files] + [(f.hi or 0, 1) for f in files])
    depth = deepest = 0
    for _, ends in edges:
        depth += -1 if ends else 1
        deepest = max(deepest, depth)
    return deepest


def _runs(knots: Iterable[_Knot], options: CompactOptions, target: int) -> Iterator[list[_Knot]]:
    """Yields runs of neighbours that all need rewriting, with no other file between them."""
    for is_fine, run in groupby(knots, key=lambda knot: _is_fine(knot, options, target)):
        if not is_fine:
            yield list(run)


def _is_fine(knot: _Knot, options: CompactOptions, target: int) -> bool:
    """Whether the files are large enough, have no deletes, and do not overlap much."""
    small = options.small_share * target
    return knot.depth < options.files_min and all(f.bytes >= small and f.deletes == 0 for f in knot.files)


def _choose(
    run: Sequence[_Knot], partition: str, options: CompactOptions, target: int
) -> tuple[list[FilePart], list[SkippedFiles]]:
    count = sum(len(knot.files) for knot in run)
    total = sum(knot.bytes for knot in run)
    deleted = any(f.deletes for knot in run for f in knot.files)
    tangled = any(knot.depth >= options.files_min for knot in run)
    if not (deleted or tangled or count >= options.files_min or (count > 1 and total >= target)):
        return [], [SkippedFiles(partition, count, f"too few small files in a row (fewer than {options.files_min})")]
    pieces: list[FilePart] = []
    skipped: list[SkippedFiles] = []
    for cut in _cut(run, target):
        if len(cut) == 1 and len(cut[0].files) == 1 and cut[0].files[0].deletes == 0:
            skipped.append(SkippedFiles(partition, 1, "a small file without a neighbour to merge with"))
            continue
        pieces.append(_file_part(cut, target))
    return pieces, skipped


def _cut(run: Sequence[_Knot], target: int) -> Iterator[list[_Knot]]:
    """Cuts into parts of about the same size, near the target. Overlapping files stay together."""
    stretch: list[_Knot] = []
    for knot in run:
        if len(knot.files) > 1 and knot.bytes > ONE_TASK_SHARE * target:
            yield from _evenly(stretch, target)
            stretch = []
            yield [knot]
        else:
            stretch.append(knot)
    yield from _evenly(stretch, target)


def _evenly(stretch: Sequence[_Knot], target: int) -> Iterator[list[_Knot]]:
    total = sum(knot.bytes for knot in stretch)
    aim = total / max(1, round(total / target))
    part: list[_Knot] = []
    passed = parts = 0
    for knot in stretch:
        # If most of it would lie beyond the part's end, it begins the next part.
        if part and passed + knot.bytes / 2 > aim * (parts + 1):
            yield part
            part, parts = [], parts + 1
        part.append(knot)
        passed += knot.bytes
    if part:
        yield part


def _file_part(cut: Sequence[_Knot], target: int) -> FilePart:
    files = tuple(f for knot in cut for f in knot.files)
    outputs = max(1, round(sum(f.bytes for f in files) / target))
    overlapping = any(len(knot.files) > 1 for knot in cut)
    alone = len(cut) == 1 and cut[0].bytes > ONE_TASK_SHARE * target
    ordered = not overlapping and all(f.ordered for f in files)
    order: RowOrder = "kept" if ordered else "shuffled" if overlapping and alone else "sorted"
    return FilePart(files[0].spec, files[0].partition, files, order, outputs)


def _steps(pieces: Sequence[FilePart], options: CompactOptions) -> Iterator[tuple[FilePart, ...]]:
    """Groups pieces into commits: a write has one partition spec, and a commit is bounded."""
    for _, group in groupby(pieces, key=lambda p: p.spec):
        step: list[FilePart] = []
        size = files = 0
        for piece in group:
            full = size + piece.bytes > options.commit_bytes_max or files + piece.outputs > options.commit_files_max
            if step and full:
                yield tuple(step)
                step, size, files = [], 0, 0
            step.append(piece)
            size += piece.bytes
            files += piece.outputs
        if step:
            yield tuple(step)
