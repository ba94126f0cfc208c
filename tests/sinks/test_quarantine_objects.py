"""What is set aside lies in the warehouse, also where that is a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import StorageError
from strandline.deliver.quarantine.content import object_name, open_objects
from strandline.deliver.sink import Address
from tests.conftest import MakeHome
from tests.servers import S3


def settings(s3: S3, bucket: str) -> dict[str, dict[str, str]]:
    return {
        "warehouse": {
            "url": f"s3://{bucket}/lake",
            "endpoint": s3.endpoint,
            "access_key": "env:TEST_ACCESS_KEY",
            "secret_key": "env:TEST_SECRET_KEY",
        }
    }


@pytest.fixture
def _keys(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ACCESS_KEY", s3.access_key)
    monkeypatch.setenv("TEST_SECRET_KEY", s3.secret_key)


@pytest.mark.usefixtures("_keys")
def test_content_is_put_replaced_read_and_removed_in_a_bucket(s3: S3, tmp_path: Path, make_home: MakeHome) -> None:
    objects = open_objects(make_home(tmp_path, settings(s3, s3.make_bucket())))
    name = object_name(Address("lake", "instance", 1, "default.events", ""), 3)
    assert objects.get(name) is None
    objects.put(name, b"one")
    objects.put(name, b"two")
    assert objects.get(name) == b"two"
    assert objects.place(name).endswith(f"/lake/{name}")
    other = object_name(Address("lake", "instance-2", 1, "default.events", ""), 3)
    objects.put(other, b"of another sink")
    assert (objects.names("instance"), objects.names("instance-2")) == ([name], [other])
    objects.remove(name)
    objects.remove(name)
    assert objects.get(name) is None and objects.names("instance") == []


@pytest.mark.usefixtures("_keys")
def test_a_bucket_that_is_not_there_is_told(s3: S3, tmp_path: Path, make_home: MakeHome) -> None:
    with pytest.raises(StorageError, match="cannot be read or written"):
        open_objects(make_home(tmp_path, settings(s3, "no-such-bucket"))).put("_strandline/quarantine/x", b"")
