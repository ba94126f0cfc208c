"""Finding Java, fetching jars, and what the JVM is told: all without a JVM."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.core.errors import ConfigError, RuntimeMissing
from strandline.core.settings.lake_config import LakeConfig, Settings
from strandline.iceberg.session import jars as jars_module
from strandline.iceberg.session import java as java_module
from strandline.iceberg.session import runtime, spark_internals
from strandline.iceberg.session.jars import Jar, ensure_jars, needed_jars, unverified_jars
from strandline.iceberg.session.java import JavaFound, find_java, inspect_java
from strandline.iceberg.session.launch import context_options, java_options, last_useful_line

ANY_JAVA = JavaFound(Path("/nowhere"), "17.0.1")


def make_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector", release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    listing = "\n".join(f"echo {m}@{version}" for m in modules.split())
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --list-modules ]; then\n{listing}\nelse\n'
        f'echo "    java.home = {home}" >&2\necho "    java.version = {version}" >&2\nfi\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Javas of this machine are out of sight."""
    monkeypatch.setattr(java_module, "_USUAL_PLACES", ())


@pytest.mark.usefixtures("only")
class TestJava:
    def test_java_home_comes_before_the_path(self, tmp_path: Path) -> None:
        home, other = make_java(tmp_path / "a", "21.0.2"), make_java(tmp_path / "b", "17.0.1")
        assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == JavaFound(home, "21.0.2")

    def test_an_unfit_java_first_does_not_hide_a_fit_one(self, tmp_path: Path) -> None:
        old, fit = make_java(tmp_path / "a", "1.8.0_392"), make_java(tmp_path / "b", "17.0.1")
        assert find_java({"JAVA_HOME": str(old), "PATH": str(fit / "bin")}) == JavaFound(fit, "17.0.1")

    def test_the_usual_places_are_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fit = make_java(tmp_path / "jvm" / "jdk-17", "17.0.1")
        monkeypatch.setattr(java_module, "_USUAL_PLACES", (str(tmp_path / "jvm" / "*"),))
        assert find_java({"PATH": ""}).home == fit

    def test_a_version_managers_script_on_the_path_leads_to_the_real_home(self, tmp_path: Path) -> None:
        home = make_java(tmp_path / "real", "17.0.1")
        shim = tmp_path / "shims" / "java"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
        shim.chmod(0o755)
        assert find_java({"PATH": str(shim.parent)}).home == home

    @pytest.mark.parametrize("version", ["11.0.22", "1.8.0_392", "25.0.3", "22"])
    def test_a_version_that_spark_cannot_use_is_named(self, tmp_path: Path, version: str) -> None:
        home = make_java(tmp_path / "a", version)
        with pytest.raises(RuntimeMissing, match=version) as raised:
            find_java({"JAVA_HOME": str(home), "PATH": ""})
        assert raised.value.hint is not None and "openjdk-17-jre-headless" in raised.value.hint

    def test_a_java_without_the_vector_module_is_refused(self, tmp_path: Path) -> None:
        looked = inspect_java(make_java(tmp_path / "a", "17.0.1", modules="java.base java.sql"))
        assert isinstance(looked, str) and "jdk.incubator.vector" in looked

    def test_a_java_without_a_release_file_is_asked(self, tmp_path: Path) -> None:
        fit = make_java(tmp_path / "a", "17.0.9", release=False)
        assert inspect_java(fit) == JavaFound(fit, "17.0.9")
        small = make_java(tmp_path / "b", "17.0.9", modules="java.base", release=False)
        assert isinstance(inspect_java(small), str)

    def test_no_java_at_all_says_what_to_install(self) -> None:
        with pytest.raises(RuntimeMissing, match="not found") as raised:
            find_java({"PATH": ""})
        for system in ("Debian", "Fedora", "brew"):
            assert system in str(raised.value.hint)

    def test_windows_gets_a_plain_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(RuntimeMissing, match="Linux and macOS"):
            find_java({})


class TestCacheFolder:
    def test_the_environment_chooses_it(self, tmp_path: Path) -> None:
        env = {"STRANDLINE_CACHE": str(tmp_path / "c"), "XDG_CACHE_HOME": str(tmp_path / "x"), "HOME": str(tmp_path)}
        assert runtime.cache_folder(env) == tmp_path / "c"
        del env["STRANDLINE_CACHE"]
        assert runtime.cache_folder(env) == tmp_path / "x" / "strandline"

    @pytest.mark.parametrize(("system", "folder"), [("linux", ".cache"), ("darwin", "Library/Caches")])
    def test_else_it_is_where_the_system_keeps_caches(
        self, system: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "platform", system)
        assert runtime.cache_folder({"HOME": str(tmp_path)}) == tmp_path / folder / "strandline"


GOOD = b"a good jar"
JAR = Jar("org.example", "thing", "1.0", hashlib.sha256(GOOD).hexdigest())


class Resolver:
    """A spark-submit that brings what it is told to, and keeps a tally."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "spark"
        self.tally = folder / "tally"
        (self.home / "bin").mkdir(parents=True)
        self.serve(GOOD)

    def serve(self, content: bytes | None, said: str = "") -> None:
        (self.home / "content").write_bytes(content or b"")
        bring = f'mkdir -p "$ivy/jars"; cp {self.home}/content "$ivy/jars/{JAR.file_name}"'
        script = self.home / "bin" / "spark-submit"
        script.write_text(
            f"#!/bin/sh\necho x >> {self.tally}\n"
            'for a in "$@"; do case "$a" in spark.jars.ivy=*) ivy="${a#*=}";; esac; done\n'
            f"sleep 0.2\n{':' if content is None else bring}\necho '{said}'\n"
        )
        script.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.tally.read_text().splitlines()) if self.tally.exists() else 0


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver(tmp_path)
    monkeypatch.setattr(jars_module, "spark_home", lambda: made.home)
    return made


class TestJars:
    def test_a_jar_is_fetched_once(self, tmp_path: Path, resolver: Resolver) -> None:
        said: list[str] = []
        for _ in range(3):
            (path,) = ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, said.append)
        assert path.read_bytes() == GOOD
        assert resolver.runs == len(said) == 1
        assert unverified_jars(tmp_path / "jars", (JAR,)) == []

    def test_a_verified_jar_is_not_read_again(
        self, tmp_path: Path, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)
        monkeypatch.setattr(jars_module, "sha256_of", lambda path: pytest.fail(f"read {path}"))
        ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)

    def test_a_jar_put_there_by_hand_is_checked_and_used(self, tmp_path: Path, resolver: Resolver) -> None:
        folder = tmp_path / "jars"
        folder.mkdir()
        (folder / JAR.file_name).write_bytes(GOOD)
        ensure_jars(folder, (JAR,), ANY_JAVA, None)
        assert resolver.runs == 0

    def test_a_damaged_jar_is_fetched_again(self, tmp_path: Path, resolver: Resolver) -> None:
        (path,) = ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)
        path.write_bytes(b"truncated")
        assert unverified_jars(tmp_path / "jars", (JAR,)) == [JAR]
        ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)
        assert path.read_bytes() == GOOD and resolver.runs == 2

    def test_a_wrong_sum_after_fetching_is_an_error_and_the_file_is_not_used(
        self, tmp_path: Path, resolver: Resolver
    ) -> None:
        resolver.serve(b"something else")
        with pytest.raises(RuntimeMissing, match="its checksum is wrong") as raised:
            ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)
        assert JAR.sha256 in str(raised.value.hint)
        assert not (tmp_path / "jars" / JAR.file_name).exists()

    def test_without_a_network_the_error_says_so_and_nothing_is_left_behind(
        self, tmp_path: Path, resolver: Resolver
    ) -> None:
        resolver.serve(None, "java.net.UnknownHostException: repository")
        with pytest.raises(RuntimeMissing, match="there is no network") as raised:
            ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)
        assert JAR.file_name in str(raised.value.hint)
        assert [p.name for p in (tmp_path / "jars").iterdir()] == ["lock"]

    def test_what_a_killed_fetch_left_is_removed(self, tmp_path: Path, resolver: Resolver) -> None:
        left = tmp_path / "jars" / "fetch-dead"
        left.mkdir(parents=True)
        ensure_jars(tmp_path / "jars", (JAR,), ANY_JAVA, None)
        assert not left.exists()

    def test_processes_that_start_together_fetch_once(self, tmp_path: Path, resolver: Resolver) -> None:
        code = (
            "import sys; from pathlib import Path; from strandline.iceberg.session import jars, java\n"
            "home, folder, sha = sys.argv[1:]; jars.spark_home = lambda: Path(home)\n"
            "wanted = (jars.Jar('org.example', 'thing', '1.0', sha),)\n"
            "jars.ensure_jars(Path(folder), wanted, java.JavaFound(Path('/'), '17'), None)"
        )
        command = [sys.executable, "-c", code, str(resolver.home), str(tmp_path / "jars"), JAR.sha256]
        processes = [subprocess.Popen(command) for _ in range(4)]
        assert [p.wait() for p in processes] == [0] * 4
        assert resolver.runs == 1

    def test_only_a_lake_on_s3_needs_the_aws_bundle(self) -> None:
        assert {j.artifact for j in needed_jars(s3=True)} - {j.artifact for j in needed_jars(s3=False)} == {
            "iceberg-aws-bundle"
        }

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("not a folder")
        monkeypatch.setattr(runtime, "find_java", lambda: ANY_JAVA)
        monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "file" / "c"))
        with pytest.raises(RuntimeMissing, match="cannot be used"):
            runtime.ensure_runtime(s3=False)


def options_for(master: str, **options: str) -> dict[str, str]:
    return context_options(
        master=master,
        driver_memory="1g",
        jars=(Path("/jars/one.jar"), Path("/jars/two.jar")),
        archive_flags=(),
        scratch=Path("/scratch"),
        options={key.replace("_", "."): value for key, value in options.items()},
    )


class TestLaunch:
    def test_the_users_collector_replaces_ours(self) -> None:
        ours = java_options(local=True, archive_flags=(), further="")
        theirs = java_options(local=True, archive_flags=(), further="-XX:+UseZGC")
        assert "-XX:+UseSerialGC" in ours and "SerialGC" not in theirs and theirs.endswith("-XX:+UseZGC")

    def test_a_path_with_a_space_stays_one_flag(self) -> None:
        flags = java_options(local=True, archive_flags=("-XX:SharedArchiveFile=/a b/c.jsa",), further="")
        assert '"-XX:SharedArchiveFile=/a b/c.jsa"' in flags

    def test_only_a_cluster_is_sent_the_jars(self) -> None:
        assert "spark.jars" not in options_for("local[*]")
        assert options_for("spark://host:7077")["spark.jars"] == "file:///jars/one.jar,file:///jars/two.jar"
        assert "spark.driver.host" not in options_for("spark://host:7077")

    def test_settings_of_the_user_win_and_class_paths_add_up(self) -> None:
        merged = options_for("local[2]", spark_ui_enabled="true", spark_driver_extraClassPath="/mine.jar")
        assert merged["spark.ui.enabled"] == "true"
        assert merged["spark.driver.extraClassPath"] == "/jars/one.jar:/jars/two.jar:/mine.jar"

    @pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"])
    def test_a_secret_among_the_flags_of_a_jvm_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match=r"trustStorePassword") as refused:
            options_for("local[2]", **{name.replace(".", "_"): "-Xss4m -Djavax.net.ssl.trustStorePassword=hidden -Da"})
        assert "hidden" not in f"{refused.value.message} {refused.value.hint}"
        options_for("local[2]", **{name.replace(".", "_"): "-Xss4m -Djavax.net.ssl.trustStore=/a/b"})

    def test_the_last_cause_is_what_a_failed_start_shows(self) -> None:
        log = "WARNING: Using incubator modules\nException in thread main java.lang.A: outer\n\tat x.Y(Z.java:1)\n"
        assert last_useful_line(log) == "Exception in thread main java.lang.A: outer"
        assert last_useful_line(log + "Caused by: java.lang.B: inner\n\t... 3 more\n") == "java.lang.B: inner"
        assert last_useful_line("Picked up JAVA_TOOL_OPTIONS: x\n") is None


def lake(tmp_path: Path, **settings: object) -> LakeConfig:
    return LakeConfig(Settings(**settings), tmp_path)  # type: ignore[arg-type]


class TestCatalogOptions:
    def test_one_half_of_a_key_pair_is_refused(self, tmp_path: Path) -> None:
        from strandline.iceberg.session.lake_session import catalog_options

        with pytest.raises(ConfigError, match="belong together"):
            catalog_options(lake(tmp_path, warehouse={"url": "s3://b/p", "access_key": "a"}))

    def test_secrets_come_from_the_environment_when_they_are_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from strandline.iceberg.session.lake_session import catalog_options

        settings = {"kind": "rest", "uri": "http://127.0.0.1:1", "options": {"token": "env:SL_TEST_TOKEN"}}
        with pytest.raises(ConfigError, match="SL_TEST_TOKEN"):
            catalog_options(lake(tmp_path, catalog=settings))
        monkeypatch.setenv("SL_TEST_TOKEN", "hidden")
        assert catalog_options(lake(tmp_path, catalog=settings))[".token"] == "hidden"


class TestReport:
    def test_it_covers_what_a_start_needs_and_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "empty"))
        checks = {check.name: check for check in runtime.runtime_report()}
        assert {"platform", "python", "sqlite", "java", "iceberg", "disk"} <= set(checks)
        assert not checks["iceberg"].ok and "network" in str(checks["iceberg"].hint)
        assert not (tmp_path / "empty").exists()

    @pytest.mark.usefixtures("only")
    def test_a_missing_java_is_a_line_of_the_report_not_an_exception(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        (check,) = [c for c in runtime.runtime_report() if c.name == "java"]
        assert not check.ok and "openjdk" in str(check.hint)

    def test_neither_runtime_nor_report_import_pyspark(self) -> None:
        code = (
            "import sys; from strandline.iceberg.session.runtime import runtime_report; runtime_report();"
            "sys.exit('pyspark' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_environment_of_the_process_stays_as_it_is_while_spark_starts() -> None:
    """Other threads read it, and start programs with it."""
    from pyspark import find_spark_home, java_gateway

    before = dict(os.environ)
    with spark_internals.launch_environment({"JAVA_HOME": "/a java", "PATH": None}):
        assert dict(os.environ) == before
        for module in (find_spark_home, java_gateway):
            seen = vars(module)["os"]
            assert seen.environ["JAVA_HOME"] == "/a java" and "PATH" not in seen.environ
            assert seen.path is os.path
    assert vars(java_gateway)["os"] is vars(find_spark_home)["os"] is os
