"""Sends several chunks of one task at once, for sinks that make a task wait rather than work."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeVar

from strandline.deliver.sink import Sender

if TYPE_CHECKING:
    import pyarrow as pa

C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
S = TypeVar("S")


class Guard(Protocol[C_contra, S]):
    """Decides from the outcomes so far whether other chunks are tried."""

    def unsent(self, chunk: C_contra) -> S | None:
        """The result for a chunk that is not tried; None for one that is."""

    def heard(self, chunk: C_contra, answer: S) -> None: ...


def sent(
    sender: Sender,
    chunks: Iterator[tuple[C, pa.Table]],
    send: Callable[[Sender, C, pa.Table], S],
    guard: Guard[C, S] | None = None,
) -> Iterator[S]:
    """The result of each chunk, in their order; the sender is closed at the end. A sender with `at_once` is copied,
    because a connection serves one chunk at a time. The task then holds as many chunks, and the next."""
    at_once: int = getattr(sender, "at_once", 1)
    senders = [sender, *(pickle.loads(pickle.dumps(sender)) for _ in range(at_once - 1))]
    try:
        if at_once == 1:
            for chunk, rows in chunks:
                unsent = None if guard is None else guard.unsent(chunk)
                if unsent is not None:
                    yield unsent
                    continue
                answer = send(sender, chunk, rows)
                if guard is not None:
                    guard.heard(chunk, answer)
                yield answer
        else:
            yield from _at_once(senders, chunks, send, guard)
    finally:
        for each in senders:
            each.close()


def _at_once(
    senders: list[Sender],
    chunks: Iterator[tuple[C, pa.Table]],
    send: Callable[[Sender, C, pa.Table], S],
    guard: Guard[C, S] | None,
) -> Iterator[S]:
    free = SimpleQueue[Sender]()
    for each in senders:
        free.put(each)

    def one(chunk: C, rows: pa.Table) -> S:
        mine = free.get()
        try:
            return send(mine, chunk, rows)
        finally:
            free.put(mine)

    under_way = deque[tuple[C, Future[S]]]()

    def first() -> S:
        chunk, running = under_way.popleft()
        answer = running.result()
        if guard is not None:
            guard.heard(chunk, answer)
        return answer

    with ThreadPoolExecutor(len(senders)) as pool:
        for chunk, rows in chunks:
            if len(under_way) == len(senders):
                yield first()
            unsent = None if guard is None else guard.unsent(chunk)
            if unsent is None:
                under_way.append((chunk, pool.submit(one, chunk, rows)))
                continue
            while under_way:
                yield first()
            yield unsent
        while under_way:
            yield first()
