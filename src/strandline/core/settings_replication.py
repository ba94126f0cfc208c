"""Settings of a lake that has several sites."""

from __future__ import annotations

from pydantic import Field, model_validator

from strandline.core.settings_section import Section


class ReplicationSettings(Section):
    """Which of a lake's sites leads. All sites of a lake have the same `arbiter`, each as it reaches it."""

    arbiter: str | None = None
    """Where the record lies that says who leads: a folder that all sites reach (`file:/shared/folder`), an object
    (`s3://bucket/key`) or a database (`postgresql://…`); or `env:NAME`. Without one, nobody notices two sites that lead
    at the same time, and `strandline promote` needs a person who says that the leader is stopped."""
    arbiter_endpoint: str | None = None
    """S3 only: address of a store that is not Amazon's."""
    arbiter_region: str | None = None
    """S3 only: the bucket's region."""
    arbiter_access_key: str | None = None
    """S3 only: usually `env:NAME`. Without: AWS's usual chain."""
    arbiter_secret_key: str | None = None
    """S3 only: usually `env:NAME`."""
    arbiter_seconds_max: float = Field(default=5.0, gt=0, le=600)
    """How long a call to the arbiter may take. After that it counts as not answered."""
    lease_seconds: float = Field(default=30.0, ge=1, le=86_400)
    """For how long a leader that does not reach the arbiter goes on taking rows. It renews at a third. `strandline
    promote` waits for so long before it takes over, and needs nobody's word that the leader is stopped."""
    clock_drift_max: float = Field(default=0.05, ge=0, le=1)
    """By how much two machines' clocks may differ in speed, as a share: `promote` waits that much longer."""
    name: str | None = None
    """This site's name, for messages. Without: the name of the machine."""
    address: str | None = None
    """Where the other sites reach this one once it leads, a URL. They find it in the
    arbiter's record."""

    @model_validator(mode="after")
    def _calls_end_within_the_lease(self) -> ReplicationSettings:
        if self.arbiter is not None and self.arbiter_seconds_max * 2 > self.lease_seconds:
            raise ValueError("replication.lease_seconds must be at least twice arbiter_seconds_max")
        return self
