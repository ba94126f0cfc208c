"""What the workers of Spark find on their path."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.iceberg.session.worker_daemon import without_archives


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages, with Spark in it as pip installs it: a copy of itself, zipped, inside."""
    package = tmp_path / "site-packages" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return package


def test_jars_and_the_copy_of_an_installed_spark_are_left_out(installed: Path) -> None:
    ours = ["/code", str(installed.parent), "/lib/python311.zip"]
    archives = [str(installed / "jars/spark-core.jar"), str(installed / "python/lib/pyspark.zip")]
    assert without_archives([*archives, *ours]) == ours


def test_a_spark_that_is_only_there_as_an_archive_is_kept(tmp_path: Path) -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-src.zip", str(tmp_path)]
    assert without_archives(["/opt/spark/jars/spark-core.jar", *path]) == path


def test_another_spark_than_the_one_installed_is_kept(installed: Path) -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", str(installed.parent)]
    assert without_archives(path) == path
