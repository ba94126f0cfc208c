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
    def parts(self) -> Iterator[FilePart]:
        return (part for step in self.steps for part in step)


@dataclass(frozen=True, slots=True)
class _OverlapGroup:
    """Files whose sequence numbers overlap, directly or through others. Most groups are just one file."""

    files: tuple[LiveFile, ...]
    depth: int  # how many of them may contain the same sequence number

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)


def plan(files: Iterable[LiveFile], options: CompactOptions, target: int) -> CompactPlan:
    parts: list[FilePart] = []
    skipped: list[SkippedFiles] = []
    for (_, partition), grouped in groupby(sorted(files, key=_sort_key), key=lambda f: (f.spec, f.partition)):
        of_partition = list(grouped)
        numbered = [f for f in of_partition if f.lo is not None and f.hi is not None]
        if unnumbered := len(of_partition) - len(numbered):
            why = "they have rows without a sequence number: adopt numbers them first"
            skipped.append(SkippedFiles(partition, unnumbered, why))
        by_range = overlapping(numbered, lambda f: (f.lo or 0, f.hi or 0))
        groups = (_OverlapGroup(tuple(group), _depth(group)) for group in by_range)
        for run in _runs(groups, options, target):
            chosen, left = _choose(run, partition, options, target)
            parts += chosen
            skipped += left
    return CompactPlan(tuple(_steps(parts, options)), tuple(skipped))


def _sort_key(file: LiveFile) -> tuple[int, str, int, int, str]:
    return (file.spec, file.partition, file.lo or 0, file.hi or 0, file.location)


def _depth(files: Sequence[LiveFile]) -> int:
    # At the same sequence number, beginnings sort before ends: both files may contain it.
    edges = sorted([(f.lo or 0, 0) for f in files] + [(f.hi or 0, 1) for f in files])
    depth = deepest = 0
    for _, ends in edges:
        depth += -1 if ends else 1
        deepest = max(deepest, depth)
    return deepest


def _runs(groups: Iterable[_OverlapGroup], options: CompactOptions, target: int) -> Iterator[list[_OverlapGroup]]:
    """Yields runs of neighbours that all need rewriting, with no other file between them."""
    for is_fine, run in groupby(groups, key=lambda group: _is_fine(group, options, target)):
        if not is_fine:
            yield list(run)


def _is_fine(group: _OverlapGroup, options: CompactOptions, target: int) -> bool:
    """Whether the files are large enough, have no deletes, and do not overlap much."""
    small = options.small_share * target
    return group.depth < options.files_min and all(f.bytes >= small and f.deletes == 0 for f in group.files)


def _choose(
    run: Sequence[_OverlapGroup], partition: str, options: CompactOptions, target: int
) -> tuple[list[FilePart], list[SkippedFiles]]:
    count = sum(len(group.files) for group in run)
    total = sum(group.bytes for group in run)
    has_deletes = any(f.deletes for group in run for f in group.files)
    overlaps_much = any(group.depth >= options.files_min for group in run)
    if not (has_deletes or overlaps_much or count >= options.files_min or (count > 1 and total >= target)):
        return [], [SkippedFiles(partition, count, f"too few small files in a row (fewer than {options.files_min})")]
    parts: list[FilePart] = []
    skipped: list[SkippedFiles] = []
    for groups in _divide(run, target):
        if len(groups) == 1 and len(groups[0].files) == 1 and groups[0].files[0].deletes == 0:
            skipped.append(SkippedFiles(partition, 1, "a small file without a neighbour to merge with"))
            continue
        parts.append(_file_part(groups, target))
    return parts, skipped


def _divide(run: Sequence[_OverlapGroup], target: int) -> Iterator[list[_OverlapGroup]]:
    """Divides the run into parts of about the same size, near the target. Overlapping files stay together."""
    neighbours: list[_OverlapGroup] = []
    for group in run:
        if len(group.files) > 1 and group.bytes > ONE_TASK_SHARE * target:
            yield from _divide_evenly(neighbours, target)
            neighbours = []
            yield [group]
        else:
            neighbours.append(group)
    yield from _divide_evenly(neighbours, target)


def _divide_evenly(run: Sequence[_OverlapGroup], target: int) -> Iterator[list[_OverlapGroup]]:
    total = sum(group.bytes for group in run)
    part_bytes = total / max(1, round(total / target))
    part: list[_OverlapGroup] = []
    passed = parts = 0
    for group in run:
        # If most of the group would lie beyond the part's end, it begins the next part.
        if part and passed + group.bytes / 2 > part_bytes * (parts + 1):
            yield part
            part, parts = [], parts + 1
        part.append(group)
        passed += group.bytes
    if part:
        yield part


def _file_part(groups: Sequence[_OverlapGroup], target: int) -> FilePart:
    files = tuple(f for group in groups for f in group.files)
    outputs = max(1, round(sum(f.bytes for f in files) / target))
    overlaps = any(len(group.files) > 1 for group in groups)
    is_large_group = len(groups) == 1 and groups[0].bytes > ONE_TASK_SHARE * target
    ordered = not overlaps and all(f.ordered for f in files)
    order: RowOrder = "kept" if ordered else "shuffled" if overlaps and is_large_group else "sorted"
    return FilePart(files[0].spec, files[0].partition, files, order, outputs)


def _steps(parts: Sequence[FilePart], options: CompactOptions) -> Iterator[tuple[FilePart, ...]]:
    """Groups parts into commits: a write has one partition spec, and a commit is bounded."""
    for _, of_spec in groupby(parts, key=lambda p: p.spec):
        step: list[FilePart] = []
        size = files = 0
        for part in of_spec:
            full = size + part.bytes > options.commit_bytes_max or files + part.outputs > options.commit_files_max
            if step and full:
                yield tuple(step)
                step, size, files = [], 0, 0
            step.append(part)
            size += part.bytes
            files += part.outputs
        if step:
            yield tuple(step)
