"""A commit that Iceberg prepares on the current metadata of a table. If the catalog is remote, we send it ourselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from strandline.core.errors import Superseded
from strandline.core.types import SnapshotId
from strandline.iceberg.metadata.table_metadata import SETTLED_TAG, TableView

_TOUCHED_MS = 3_650 * 86_400_000  # ten years: our branches do not expire


class TableChange:
    """A change on the current metadata of a table. Iceberg computes it and writes its files. A commit that we send
    ourselves is sent once. Its files stay, whatever the outcome: after a refusal, the reconciler finds them."""

    def __init__(self, table: Any, *, is_remote: bool) -> None:
        self.table = table
        self._is_remote = is_remote
        self._operations = table.operations()
        self.transaction = table.newTransaction()
        self._base = self._operations.current()

    def _require(self, branch: str) -> None:
        """Makes the catalog refuse the commit if the branch is gone or has another head. A REST catalog compares the
        refs that a commit sets, but not those that it removes. So this sets the branch before it is removed."""
        touch = self.transaction.manageSnapshots()
        touch.setMaxRefAgeMs(branch, _TOUCHED_MS)
        touch.commit()

    def send(self) -> None:
        self._operations.commit(self._base, self.transaction.table().operations().current())

    def commit(
        self,
        *,
        create: str | None = None,
        pick: SnapshotId | None = None,
        remove: Sequence[str] = (),
        settle: bool = False,
    ) -> None:
        """Commits changes of branches and main. `settle` puts our tag on main as it is after this commit."""
        for branch in remove if self._is_remote else ():
            self._require(branch)
        manage = self.transaction.manageSnapshots()
        if create is not None:
            manage.createBranch(create)
        if pick is not None:
            manage.cherrypick(pick)
        for branch in remove:
            manage.removeBranch(branch)
        manage.commit()
        if settle:
            self._tag_main()
        self._finish()  # a change of refs is refused on other metadata than it was planned on

    def append(self, branch: str, files: Iterable[Any], summary: tuple[str, str]) -> None:
        append = self.transaction.newAppend().toBranch(branch)
        for file in files:
            append.appendFile(file)
        append.set(*summary)
        append.commit()
        self._finish()

    def _finish(self) -> None:
        if self._is_remote:
            self.send()
        else:
            self.transaction.commitTransaction()  # Iceberg removes the files of a refused commit

    def _tag_main(self) -> None:
        table = self.transaction.table()
        main, tag = table.currentSnapshot(), table.refs().get(SETTLED_TAG)
        if main is None or (tag is not None and tag.snapshotId() == main.snapshotId()):
            return
        manage = self.transaction.manageSnapshots()
        (manage.createTag if tag is None else manage.replaceTag)(SETTLED_TAG, main.snapshotId())
        manage.commit()


def check_epoch(
    view: TableView, epoch: int, outcome: str = "the rows that it staged were published or dropped"
) -> None:
    if view.epoch > epoch:
        raise Superseded(
            f"another ledger took this lake over (epoch {view.epoch}, ours is {epoch})",
            hint=f"Stop using this copy of the ledger: {outcome}.",
        )
