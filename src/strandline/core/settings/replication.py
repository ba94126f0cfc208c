"""Settings of a lake that has several sites."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from strandline.core.secrets import may_hold_secret
from strandline.core.settings.section import Section


class ReplicationSettings(Section):
    """Which site of a lake leads. All sites of a lake use the same arbiter. Each site may have its own address for
    it."""

    arbiter: str | None = None
    """Where the record is stored that says which site leads: a shared folder (`file:/shared/folder`), an object
    (`s3://bucket/key`) or a database (`postgresql://…`); or `env:NAME`. Without an arbiter, nothing detects two
    leaders, and `strandline promote` needs a person who confirms that the old leader is stopped."""
    arbiter_endpoint: str | None = None
    """S3 only: endpoint of a store other than Amazon's."""
    arbiter_region: str | None = None
    """S3 only: the bucket's region."""
    arbiter_access_key: str | None = None
    """S3 only: usually `env:NAME`. Without: AWS's default credential chain."""
    arbiter_secret_key: str | None = None
    """S3 only: usually `env:NAME`."""
    arbiter_seconds_max: float = Field(default=5.0, gt=0, le=600)
    """Timeout of a call to the arbiter."""
    lease_seconds: float = Field(default=30.0, ge=1, le=86_400)
    """How long a leader that cannot reach the arbiter still accepts rows. It renews its lease after a third of this
    time. `strandline promote` waits this long before it takes over, so nobody has to confirm that the old leader is
    stopped."""
    clock_drift_max: float = Field(default=0.05, ge=0, le=1)
    """By how much the clocks of two machines may differ in speed, as a share. `promote` waits that much longer."""
    name: str | None = None
    """This site's name, for messages. Without: the name of the machine."""
    address: str | None = None
    """The URL at which the other sites reach this one once it leads. They read it from the arbiter's record."""

    @field_validator("address", "arbiter_endpoint")
    @classmethod
    def _no_secret_in_address(cls, address: str | None) -> str | None:
        """The other sites store the address, and both are shown in messages."""
        if may_hold_secret(address or ""):
            raise ValueError(
                "an address with a user, a password or a query would be stored at other sites and shown in messages: "
                "give the address alone"
            )
        return address

    @model_validator(mode="after")
    def _calls_end_within_the_lease(self) -> ReplicationSettings:
        if self.arbiter is not None and self.arbiter_seconds_max * 2 > self.lease_seconds:
            raise ValueError("replication.lease_seconds must be at least twice arbiter_seconds_max")
        return self
