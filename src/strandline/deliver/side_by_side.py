"""Several chunks of one task on their way at once, for sinks that make a task wait rather than work."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from strandline.deliver.sink import Sender

if TYPE_CHECKING:
    import pyarrow as pa

C = TypeVar("C")
S = TypeVar("S")


def sent(sender: Sender, chunks: Iterator[tuple[C, pa.Table]], send: Callable[[Sender, C, pa.Table], S]) -> Iterator[S]:
    """What became of each, in the order of the chunks; the sender is closed in the end. One that says `at_once` is
    copied, for a connection is nobody else's while it is used; the task holds as many chunks, and the next."""
    at_once: int = getattr(sender, "at_once", 1)
    senders = [sender, *(pickle.loads(pickle.dumps(sender)) for _ in range(at_once - 1))]
    try:
        if at_once == 1:
            for chunk, rows in chunks:
                yield send(sender, chunk, rows)
        else:
            yield from _at_once(senders, chunks, send)
    finally:
        for each in senders:
            each.close()


def _at_once(
    senders: list[Sender], chunks: Iterator[tuple[C, pa.Table]], send: Callable[[Sender, C, pa.Table], S]
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

    under_way = deque[Future[S]]()
    with ThreadPoolExecutor(len(senders)) as pool:
        for chunk, rows in chunks:
            if len(under_way) == len(senders):
                yield under_way.popleft().result()
            under_way.append(pool.submit(one, chunk, rows))
        while under_way:
            yield under_way.popleft().result()
