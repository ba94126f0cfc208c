"""Whether this site may commit rows now. With an arbiter, a leader has a lease and checks it at the commit point."""

from __future__ import annotations

from typing import Protocol


class WriteRight(Protocol):
    def obtain(self) -> None:
        """Renews the lease if that is due. Called before a batch begins and before its commit point, outside of any
        transaction. While the lease lasts, an arbiter that does not answer is no error. Raises `NotLeader`,
        `LeaseOver`."""

    def check(self) -> None:
        """Compares the lease with this machine's clock. Called at the commit point, with the counter locked. Raises
        `LeaseOver`."""


class Unlimited:
    """The right of a site without an arbiter: every leader may commit."""

    def obtain(self) -> None:
        pass

    def check(self) -> None:
        pass
