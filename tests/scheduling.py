"""Which process of a test run gets which file: the longest first, and those that need the shared JVM to as few as can
do them in time. A JVM costs a minute of CPU until it is warm, so the last process does without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

JVM_SHARE = 0.68
"""Of the seconds of a whole run, those of files that need the JVM (`make test-times`)."""
WARM_UP_SECONDS = 60


class ByJvm(LoadFileScheduling):
    """Files come in the order of the collection. A process whose kind of file is used up takes the other kind."""

    def __init__(
        self, config: Any, log: Any, needs_jvm: Callable[[str], bool], seconds: Callable[[str], float]
    ) -> None:
        super().__init__(config, log)
        self._needs_jvm, self._seconds = needs_jvm, seconds

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._choose(node)
        if file is not None:
            self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self._choose(node) is None:
            node.shutdown()
            return
        super()._reschedule(node)

    def _choose(self, node: WorkerController) -> str | None:
        """None: what is left is done before this process could have warmed up a JVM."""
        with_jvm = [file for file in self.workqueue if self._needs_jvm(file)]
        without = [file for file in self.workqueue if not self._needs_jvm(file)]
        nodes = self.nodes
        jvms = max(1, round(len(nodes) * JVM_SHARE))
        if nodes.index(node) < jvms or any(map(self._needs_jvm, self.assigned_work[node])):
            return next(iter(with_jvm or without))
        if without:
            return without[0]
        left = sum(map(self._seconds, with_jvm)) / jvms
        return with_jvm[0] if left > WARM_UP_SECONDS else None
