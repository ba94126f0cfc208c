"""A real Iceberg REST catalog for tests: the one that Apache Iceberg tests its own REST client with.

It is published as classes in Iceberg's test jar, not as a program. Jetty, told by an XML file what to put together,
makes a server of it that listens on 127.0.0.1 only; what Spark carries (Hadoop, Jackson, logging) is taken from there.
Behind it is Iceberg's JDBC catalog on a SQLite file. A server holds several catalogs, each on a port of its own, so
that every lake of a test can have one, and one JVM is enough.

`python -m tests.rest_catalog` fetches what is missing, for scripts/test_parts.sh. Ivy, which Spark carries, fetches: it
knows the default repository, and unlike Spark's own resolver it can be asked for a test jar. What it brings is used
only if its SHA-256 is the pinned one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from strandline.core.errors import RuntimeMissing
from strandline.iceberg.session.jars import Jar, ensure_jars, exclusive, needed_jars, sha256_of, spark_home
from strandline.iceberg.session.java import JavaFound, find_java
from strandline.iceberg.session.runtime import cache_folder
from tests.run_report import note_start
from tests.servers import ROOT, S3, Server, ServerMissing, _answers, _die_with_parent, _folder, free_port

FOLDER = ROOT / ".cache" / "rest-catalog"
TESTS = "tests"
_FETCH_SECONDS_MAX = 600
_STARTS_MAX = 3
_ICEBERG, _ICEBERG_VERSION = "org.apache.iceberg", "1.11.0"  # the newest that has a test jar
_JETTY, _JETTY_VERSION = "org.eclipse.jetty", "12.1.12"
_SERVLETS = f"{_JETTY}.ee10.servlet"


def _iceberg(artifact: str, sha256: str) -> Jar:
    return Jar(_ICEBERG, f"iceberg-{artifact}", _ICEBERG_VERSION, sha256)


def _jetty(artifact: str, sha256: str) -> Jar:
    return Jar(_JETTY, f"jetty-{artifact}", _JETTY_VERSION, sha256)


SERVER = _iceberg("core", "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3")
"""Of the classifier `tests`."""
JARS = (
    _iceberg("core", "53b9eb7a8c34fb9958ea7d9a4d19ba5bc96f592d0f05e8625b0778c70b1f0090"),
    _iceberg("api", "f00675a12ceb6d833bb9c22024823a3e7afdedf7abcefe34719f45b0d211995a"),
    _iceberg("common", "b2835d00db7c92bdfa728123ad7cdcb488e2f2805c1c51fb9ae94e8bd203bd7d"),
    _iceberg("bundled-guava", "396d48d93ef5735f2ddef0cf9b3d6968ebd67b64b5cfe753d41c429d3f46a2a1"),
    _iceberg("aws", "4cfe4a7ba3a4fb247a29e60c614678c3b7a1e9b4b91f54e0ca3406419c9338f0"),
    _jetty("server", "9ba04bb8d011444a10873a51b1cb8297c04f70db55c8a8d9efcc3a9b97896787"),
    _jetty("http", "5476e16ef7e28883dba3669ee06491021e4a9aeba9a76f901a3f5c2bb5252a3e"),
    _jetty("io", "a809a6a534adccfaa08bca94aa54328e3ac858973ccddbda770f7e9e0f5099fc"),
    _jetty("util", "f6fbfa61cfcca032ff82ad8ff3b66a14374047f15486521dbc89a6c0df19ccf2"),
    _jetty("security", "fcc0206c1ac66b632ef29a59ccf76c3f3737a62ef54694b1d111eeb2e6efe804"),
    _jetty("session", "73aea4cdd91f2027da1a09cd5953b661625017971d53d8e1ff342f8547752b06"),
    _jetty("xml", "1c7b6320e3ad4ccca861ecfd1347f10ac6130ca2c2eb788a6b5dff3ab0c0f532"),
    Jar(
        f"{_JETTY}.ee10",
        "jetty-ee10-servlet",
        _JETTY_VERSION,
        "021375ea80d84b5f9d46260916fc0450dc4fae5a95ce80f8289e87a0db07de47",
    ),
    Jar(
        "jakarta.servlet",
        "jakarta.servlet-api",
        "6.0.0",
        "c034eb1afb158987dbb53a5fea0cadf611c8dae8daadd59c44d9d5ab70129cef",
    ),
    Jar(
        "org.apache.httpcomponents.client5",
        "httpclient5",
        "5.6.1",
        "1e3d8444c3c27772e4b9d42a790f06b3345a8ece4fd16d00981f2f2460e1e772",
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5",
        "5.4.1",
        "d9dca31ae1ee4e03c760596ac3f57b1d46f405376d68da6aff40eaca3bb4e2d8",
    ),
    Jar("dev.failsafe", "failsafe", "3.3.2", "2c5dc879a6dac7ea3a7b29d795e27bd49b8e7908b05c2f3e56053c19d79850f5"),
    Jar(
        "software.amazon.awssdk",
        "url-connection-client",
        "2.54.17",
        "72be77373c797aaf46e2a20d6a439eb68b4e8a3ef98d335c56cb7a1bf2812217",
    ),
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "2.9.3",
        "1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    ),
)


# --- what it is made of ----------------------------------------------------------------------------------------------


def _pinned() -> dict[Path, str]:
    """Each file, and its sum."""
    found = {FOLDER / f"{jar.artifact}-{jar.version}.jar": jar.sha256 for jar in JARS}
    return found | {FOLDER / f"{SERVER.artifact}-{SERVER.version}-{TESTS}.jar": SERVER.sha256}


def find_rest_catalog() -> list[Path]:
    """The jars. Their sums were looked at when they were fetched."""
    jars = list(_pinned())
    if missing := [jar.name for jar in jars if not jar.is_file()]:
        raise ServerMissing(f"the REST catalog lacks {missing[0]}; `make test` fetches it")
    return jars


def _java() -> JavaFound:
    try:
        return find_java()
    except RuntimeMissing as e:
        raise ServerMissing(f"the REST catalog needs Java: {e.message}") from e


def fetch() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with exclusive(FOLDER / "lock"):
        if all(path.is_file() for path in _pinned()):
            return
        with tempfile.TemporaryDirectory(dir=FOLDER, prefix="fetch-") as scratch:
            said = _run_ivy(Path(scratch))
            for path, sha256 in _pinned().items():
                fetched = Path(scratch) / "jars" / path.name
                if not fetched.is_file():
                    raise ServerMissing(f"{path.name} could not be fetched\n{said[-2000:]}")
                if (found := sha256_of(fetched)) != sha256:
                    raise ServerMissing(f"{path.name} is not the file it should be (SHA-256 {found})")
            for path in _pinned():
                os.replace(Path(scratch) / "jars" / path.name, path)


def _run_ivy(scratch: Path) -> str:
    [ivy] = (spark_home() / "jars").glob("ivy-*.jar")
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")  # as Spark's own resolver has it
    root = f" root={quoteattr(mirror)}" if mirror else ""
    (scratch / "settings.xml").write_text(
        f'<ivysettings><settings defaultResolver="maven"/><caches defaultCacheDir="{scratch}/cache"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true"{root}/></resolvers></ivysettings>'
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="strandline" module="rest-catalog"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(map(_dependency, JARS))}</dependencies></ivy-module>"
    )
    command = [find_java().program, "-jar", ivy, "-settings", "settings.xml", "-ivy", "ivy.xml", "-confs", "default"]
    command += ["-retrieve", "jars/[artifact]-[revision](-[classifier]).[ext]"]
    run = subprocess.run(
        command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", timeout=_FETCH_SECONDS_MAX, check=False,
    )  # fmt: skip
    return run.stdout


def _dependency(jar: Jar) -> str:
    artifacts = ""
    if jar.coordinates == SERVER.coordinates:
        artifacts = f'<artifact name="{jar.artifact}" type="jar" ext="jar"/>'
        artifacts += f'<artifact name="{jar.artifact}" type="test-jar" ext="jar" m:classifier="{TESTS}"/>'
    named = f'org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
    return f'<dependency {named} conf="default" transitive="false">{artifacts}</dependency>'


# --- running it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestCatalog:
    port: int
    warehouse: Mapping[str, str]
    """As the settings of a lake have it."""

    def settings(self, port: int | None = None) -> dict[str, dict[str, Any]]:
        """Of a lake on this catalog; `port` is that of a proxy before it."""
        uri = f"http://127.0.0.1:{port or self.port}"
        return {"catalog": {"kind": "rest", "uri": uri}, "warehouse": dict(self.warehouse)}

    @property
    def folder(self) -> Path:
        return Path(self.warehouse["url"])


@dataclass
class RestCatalogs:
    server: Server
    folders: list[RestCatalog]
    buckets: list[RestCatalog]
    _given: list[RestCatalog] = field(default_factory=list)

    def take(self, *, bucket: bool = False) -> RestCatalog:
        """One that nobody has used."""
        free = [c for c in (self.buckets if bucket else self.folders) if c not in self._given]
        assert free, "start the server with more catalogs"
        self._given.append(free[0])
        return free[0]


def start_rest_catalogs(*, folders: int = 0, buckets: int = 0, s3: S3 | None = None) -> RestCatalogs:
    for left in reversed(range(_STARTS_MAX)):
        try:
            return _start(folders, buckets, s3)
        except RuntimeError:  # among so many ports, one may have been taken since it was found to be free
            if not left:
                raise
    raise AssertionError("unreachable")


def _start(folders: int, buckets: int, s3: S3 | None) -> RestCatalogs:
    jars, java = find_rest_catalog(), _java()
    jars += ensure_jars(cache_folder() / "jars", needed_jars(s3=True), java, None)[1:]
    folder, ports = _folder("rest"), set[int]()
    while len(ports) < folders + buckets:
        ports.add(free_port())
    in_folders = [RestCatalog(ports.pop(), {"url": str(folder / f"warehouse{n}")}) for n in range(folders)]
    in_buckets: list[RestCatalog] = []
    for _ in range(buckets):
        assert s3 is not None
        keys = {"endpoint": s3.endpoint, "access_key": s3.access_key, "secret_key": s3.secret_key}
        in_buckets.append(RestCatalog(ports.pop(), {"url": f"s3://{s3.make_bucket()}/lake", **keys}))
    (folder / "server.xml").write_text(_server_xml(folder, [*in_folders, *in_buckets]))
    log = folder / "log"
    # Ours come first: Spark has an older servlet API.
    class_path = os.pathsep.join([*map(str, jars), str(spark_home() / "jars" / "*")])
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [java.program, "-cp", class_path, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", note_start(),
             "-Dlog4j2.level=WARN", "-Dorg.eclipse.jetty.xml.XmlParser.Validating=false",
             "org.eclipse.jetty.xml.XmlConfiguration", folder / "server.xml"],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=folder, preexec_fn=_die_with_parent,
        )  # fmt: skip
    server = Server(folder, log, process, signal.SIGKILL)  # nothing of it is needed any more
    server.wait_until(lambda: all(_answers(c.port) for c in (*in_folders, *in_buckets)))
    return RestCatalogs(server, in_folders, in_buckets)


def _server_xml(folder: Path, catalogs: Sequence[RestCatalog]) -> str:
    """A connector for each catalog; a request is answered by the catalog that belongs to the connector it came by."""
    parts = [_catalog_xml(f"c{n}", folder / f"catalog{n}.db", catalog) for n, catalog in enumerate(catalogs)]
    return (
        '<?xml version="1.0"?>'
        '<Configure id="server" class="org.eclipse.jetty.server.Server">'
        '<New id="all" class="org.eclipse.jetty.server.handler.ContextHandlerCollection"/>'
        f'{"".join(parts)}<Set name="handler"><Ref refid="all"/></Set></Configure>'
    )


def _catalog_xml(name: str, database: Path, catalog: RestCatalog) -> str:
    options = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{database}",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": "60000",
        **_storage(catalog.warehouse),
    }
    entries = "".join(f"<Entry><Item>{escape(k)}</Item><Item>{escape(v)}</Item></Entry>" for k, v in options.items())
    backend = _new(
        "org.apache.iceberg.rest.RESTCatalogAdapter",
        '<Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">'
        f"<Arg>{name}</Arg><Arg><Map>{entries}</Map></Arg>"
        f"<Arg>{_new('org.apache.hadoop.conf.Configuration')}</Arg></Call>",
    )
    servlet = f'<Set name="servlet">{_new("org.apache.iceberg.rest.RESTCatalogServlet", backend)}</Set>'
    return (
        '<Call name="addConnector"><Arg><New class="org.eclipse.jetty.server.ServerConnector">'
        f'<Arg><Ref refid="server"/></Arg><Set name="name">{name}</Set>'
        f'<Set name="host">127.0.0.1</Set><Set name="port">{catalog.port}</Set></New></Arg></Call>'
        f'<Ref refid="all"><Call name="addHandler"><Arg><New class="{_SERVLETS}.ServletContextHandler">'
        '<Set name="contextPath">/</Set>'
        f'<Set name="virtualHosts"><Array type="String"><Item>@{name}</Item></Array></Set>'
        f'<Call name="addServlet"><Arg><New class="{_SERVLETS}.ServletHolder">{servlet}</New></Arg>'
        "<Arg>/*</Arg></Call></New></Arg></Call></Ref>"
    )


def _new(kind: str, argument: str = "") -> str:
    return f'<New class="{kind}">{f"<Arg>{argument}</Arg>" if argument else ""}</New>'


def _storage(warehouse: Mapping[str, str]) -> dict[str, str]:
    if "endpoint" not in warehouse:
        return {"warehouse": f"file://{warehouse['url']}", "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    return {
        "warehouse": warehouse["url"],
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": warehouse["endpoint"],
        "s3.path-style-access": "true",
        "s3.access-key-id": warehouse["access_key"],
        "s3.secret-access-key": warehouse["secret_key"],
        "client.region": "us-east-1",
        "http-client.type": "urlconnection",  # the default one is not in the newer bundle that Spark uses
    }


if __name__ == "__main__":
    try:
        fetch()
    except (ServerMissing, RuntimeMissing, subprocess.TimeoutExpired) as missing:
        sys.exit(str(missing))
