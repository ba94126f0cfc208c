"""Tests which sequence numbers of a whole column lie in given ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from strandline.core.types import SeqRange

Numbers = npt.NDArray[np.int64]  # sequence numbers


class NumberRanges:
    """Sorted and disjoint ranges, as two arrays. Adjacent ranges are joined."""

    def __init__(self, ranges: Sequence[SeqRange]) -> None:
        los = np.fromiter((r.lo for r in ranges), dtype=np.int64, count=len(ranges))
        his = np.fromiter((r.hi for r in ranges), dtype=np.int64, count=len(ranges))
        if np.any(los[1:] <= his[:-1]):
            raise ValueError("the ranges must be sorted and disjoint")
        gap = los[1:] - 1 > his[:-1]
        self._los: Numbers = los[np.concatenate(([True], gap))] if len(los) else los
        self._his: Numbers = his[np.concatenate((gap, [True]))] if len(his) else his

    def contain_all(self, lo: int, hi: int) -> bool:
        """Whether the ranges contain all numbers from `lo` to `hi`."""
        index = int(np.searchsorted(self._los, lo, side="right")) - 1
        return index >= 0 and hi <= int(self._his[index])

    def contain_none(self, lo: int, hi: int) -> bool:
        return bool(np.searchsorted(self._his, lo, side="left") == np.searchsorted(self._los, hi, side="right"))

    def contain(self, values: Numbers) -> npt.NDArray[np.bool_]:
        """For each value, whether a range contains it."""
        if not len(self._los):
            return np.zeros(len(values), dtype=bool)
        index = np.searchsorted(self._los, values, side="right") - 1
        return (index >= 0) & (values <= self._his[np.maximum(index, 0)])
