"""Whether this site may commit rows now. With an arbiter a leader has a lease, and checks it at the commit point."""

from __future__ import annotations

from typing import Protocol


class WriteRight(Protocol):
    def obtain(self) -> None:
        """Before a batch begins, and before its commit point, outside of any transaction: renews the lease if that is
        due. An arbiter that does not answer changes nothing while the lease lasts. Raises `NotLeader`, `LeaseOver`."""

    def check(self) -> None:
        """At the commit point, under the counter's lock: by this machine's own clock. Raises `LeaseOver`."""


class Unlimited:
    """The right of a site without an arbiter: every leader may commit."""

    def obtain(self) -> None:
        pass

    def check(self) -> None:
        pass
