"""Settings: one TOML file, frozen values, each with the reason for its default.

`docs/settings.md` is made from this module (`make docs`), so the descriptions here are what users read. A value
`env:NAME` is read from the environment when it is needed, and is never stored; where a secret is meant and nothing
else, `file:PATH` is read, too.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from strandline.core.errors import ConfigError, UnsafeCatalog
from strandline.core.secrets import may_hold_secret, resolve_secret
from strandline.core.settings.environment import NESTED, PREFIX, with_environment
from strandline.core.settings.follow import FollowSettings
from strandline.core.settings.maintain import MaintainSettings
from strandline.core.settings.receive import ReceiveSettings
from strandline.core.settings.reconcile import ReconcileSettings
from strandline.core.settings.replication import ReplicationSettings
from strandline.core.settings.run import RunSettings
from strandline.core.settings.section import Section
from strandline.core.settings.serve import ServeSettings
from strandline.core.text.wording import nearest

CONFIG_NAME = "strandline.toml"

_POSTGRES = ("postgresql://", "postgres://")


def _without_secrets(address: str | None) -> str | None:
    """Addresses are shown in messages and kept in logs."""
    if may_hold_secret(address or ""):
        raise ValueError(
            "an address with a user, a password or a query would be shown in messages: name secrets in "
            "warehouse.access_key and secret_key, or in catalog.options"
        )
    return address


class WarehouseSettings(Section):
    """Where the files of tables, the witness and the lake's own folders are stored."""

    url: str = "warehouse"
    """A folder (relative to the settings file) or `s3://bucket/prefix`."""
    endpoint: str | None = None
    """S3 only: endpoint of a store other than Amazon's."""
    region: str = "us-east-1"
    """S3 only: the bucket's region."""
    access_key: str | None = None
    """S3 only: usually `env:NAME`. Without: AWS's default credential chain."""
    secret_key: str | None = None
    """S3 only: usually `env:NAME`."""

    _no_secret_in_endpoint = field_validator("endpoint")(_without_secrets)

    @property
    def is_s3(self) -> bool:
        return self.url.startswith("s3://")


class CatalogSettings(Section):
    """The Iceberg catalog: it knows the tables and the newest metadata file of each."""

    kind: Literal["sqlite", "rest"] = "sqlite"
    """`sqlite` on one machine, `rest` for several. JDBC over a network database is refused: if the answer to a commit
    is lost, it deletes live metadata."""
    path: str = "catalog.db"
    """`sqlite` only: the catalog's file. It is not the ledger's file, so that Spark and Python do not wait for each
    other."""
    uri: str | None = None
    """`rest` only: the catalog's URL, HTTP or HTTPS. The catalog decides where its tables are stored. Set
    `warehouse.url` to that place."""
    options: dict[str, str] = Field(default_factory=dict)
    """`rest` only: further options of Iceberg's REST client, such as `token`, or `warehouse` if the catalog expects
    another name than `warehouse.url`."""

    _no_secret_in_uri = field_validator("uri")(_without_secrets)

    @field_validator("kind", mode="before")
    @classmethod
    def _no_network_jdbc(cls, value: object) -> object:
        if value in ("jdbc", "postgres", "postgresql", "mysql"):
            raise UnsafeCatalog(
                "Iceberg's JDBC catalog over a network database is not safe: when the answer to a commit is lost it "
                "takes its own success for a conflict and deletes live metadata.",
                hint='Set catalog.kind = "sqlite" on one machine, or "rest" beyond one.',
            )
        return value

    @model_validator(mode="after")
    def _rest_has_an_address(self) -> CatalogSettings:
        if self.kind == "rest" and not self.uri:
            raise ValueError('catalog.kind = "rest" needs catalog.uri')
        if self.uri and not self.uri.startswith(("http://", "https://")):
            raise ValueError("catalog.uri is not an address: it begins with http:// or https://")
        return self


class LedgerSettings(Section):
    """Strandline's own durable state."""

    url: str = "ledger.db"
    """A SQLite file, relative to the settings file, or `postgresql://…`; or `env:NAME`."""
    busy_timeout_seconds: int = Field(default=60, ge=1, le=3600)
    """How long to wait for a transaction of another process. Transactions take milliseconds. The first one after a
    restore may take as long as a few Iceberg commits."""
    connect_seconds_max: int = Field(default=10, ge=2, le=600)
    """PostgreSQL only: connection timeout for each host."""
    silence_seconds_max: int = Field(default=30, ge=3, le=3600)
    """PostgreSQL only: a connection that is silent for this long counts as lost, on both sides. Without it, a network
    that silently drops packets is not noticed for hours."""
    statement_seconds_max: int = Field(default=600, ge=1, le=86_400)
    """PostgreSQL only: timeout of one statement. Migrations may take longer."""


class SparkSettings(Section):
    """Spark. By default it runs inside the process."""

    master: str = "local[*]"
    """`local[*]` is this process; or `spark://host:port`, `yarn`, `k8s://…`."""
    driver_memory: str = "2g"
    """Heap of the driver. With a local master, the executors share it."""
    options: dict[str, str] = Field(default_factory=dict)
    """Further Spark settings, passed as they are; a value may be `env:NAME`."""


class IngestSettings(Section):
    """How batches are ingested."""

    lease_seconds: int = Field(default=120, ge=1, le=86_400)
    """A writer that has not renewed its lease on a block for this long counts as dead. It renews after a third of this
    time."""
    commit_attempts_max: int = Field(default=50, ge=1, le=1000)
    """How often an Iceberg commit is retried after a conflict."""
    files_at_once_max: int = Field(default=2, ge=1, le=64)
    """How many files `ingest` reads at the same time. Each file is a batch of its own."""
    rejects_max: int = Field(default=100_000, ge=0)
    """A file with more rejected rows than this is refused as a whole: it is probably not what it claims to be."""
    adopt_rows_max: int = Field(default=1_000_000, ge=1)
    """How many rows `dataset adopt` numbers in one step. A crash loses at most the work of one step."""


class SealSettings(Section):
    poll_seconds: float = Field(default=0.5, gt=0, le=60)
    """How often a watch on the sealed watermark reads it from the ledger."""


class DeliverSettings(Section):
    """How rows are delivered to sinks."""

    lease_seconds: int = Field(default=60, ge=1, le=86_400)
    """A deliverer that has not renewed its lease on a sink for this long counts as dead. It renews after a third of
    this time."""
    poll_seconds: float = Field(default=1.0, gt=0, le=3600)
    """How often `strandline run` checks for rows to deliver."""
    sinks_at_once_max: int = Field(default=4, ge=1, le=256)
    """How many sinks one process delivers to at the same time."""
    sink_cores_share_max: float = Field(default=0.5, gt=0, le=1)
    """In a lake with several sinks: the share of Spark's cores that one sink may use, at least one core. A destination
    that hangs then does not block the other sinks. A sink that failed last time gets one core until a chunk lands. All
    such sinks together leave one core to the others."""
    retry_seconds_max: int = Field(default=60, ge=1, le=86_400)
    """The longest backoff before a failed sink is retried."""
    retry_long_seconds_max: int = Field(default=3600, ge=1, le=86_400)
    """The longest backoff for a sink that has failed for a long time: a tenth of that time, up to this. `strandline
    tick --sink NAME` retries at once."""
    idle_check_seconds: int = Field(default=600, ge=0, le=86_400)
    """How often `strandline run` checks whether the table of an idle `postgres` sink was emptied or replaced. 0: never.
    It is then noticed with the next new row."""
    plan_rows_max: int = Field(default=16_000_000, ge=1)
    """How many rows one plan may cover, over all partitions of a sink. A sink that is further behind gets several
    plans, one after the other."""
    job_rows_max: int = Field(default=4_000_000, ge=1)
    """How many rows one Spark job builds and sends; at least one chunk. The ledger records after each job what has
    landed."""
    wait_for: Literal["none", "all"] = "none"
    """`all`: sinks get a row only after every follower of the dataset has it. No sink then has a row that a follower
    lacks, and a follower that is down delays all sinks."""


class ForwardSettings(Section):
    """Where rows may be sent over HTTP."""

    allow: list[str] = Field(default=[])  # not a factory: pydantic takes 10 ms to learn how `list` is called
    """Hosts (`collector.example.com`, `*.example.com`), addresses and networks (`10.1.0.0/16`) that `forward` may send
    to. Empty: every public address. Private, loopback and link-local addresses are refused, whatever host name resolves
    to them, unless an address or network in this list covers them."""
    connect_seconds_max: float = Field(default=10, gt=0, le=600)
    """Connection timeout."""
    answer_seconds_max: float = Field(default=60, gt=0, le=3600)
    """How long the server may take to answer."""
    retry_after_seconds_max: int = Field(default=300, ge=1, le=86_400)
    """The longest `Retry-After` that is respected. A longer one counts as this."""


class Settings(Section):
    """All settings of a lake."""

    warehouse: WarehouseSettings = WarehouseSettings()
    catalog: CatalogSettings = CatalogSettings()
    ledger: LedgerSettings = LedgerSettings()
    spark: SparkSettings = SparkSettings()
    ingest: IngestSettings = IngestSettings()
    seal: SealSettings = SealSettings()
    deliver: DeliverSettings = DeliverSettings()
    forward: ForwardSettings = ForwardSettings()
    receive: ReceiveSettings = ReceiveSettings()
    maintain: MaintainSettings = MaintainSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    serve: ServeSettings = ServeSettings()
    run: RunSettings = RunSettings()
    follow: FollowSettings = FollowSettings()
    replication: ReplicationSettings = ReplicationSettings()


@dataclass(frozen=True, eq=False)
class LakeConfig:
    """Settings, and the folder to which their relative paths refer."""

    settings: Settings
    home: Path
    # Settings that the file or the environment names, such as `reconcile.enabled`; all others have defaults.
    named: frozenset[str] = frozenset()

    def path(self, value: str) -> Path:
        return (self.home / value).resolve()

    @property
    def warehouse_url(self) -> str:
        """`file:///…` or `s3://…`, without a trailing slash."""
        url = self.settings.warehouse.url
        if self.settings.warehouse.is_s3:
            return url.rstrip("/")
        # Not as_uri(): Iceberg takes a location as it is, and would write to a folder called `a%20b`.
        return f"file://{self.path(url.removeprefix('file://'))}"

    @property
    def warehouse_folder(self) -> Path | None:
        """The local folder, or None where the warehouse is a bucket."""
        if self.settings.warehouse.is_s3:
            return None
        return self.path(self.settings.warehouse.url.removeprefix("file://"))

    @property
    def ledger_file(self) -> Path | None:
        """The SQLite file, whatever characters its path has, or None where the ledger is in PostgreSQL."""
        url = self._ledger
        if url.startswith(_POSTGRES):
            return None
        if "://" in url and not url.startswith("sqlite:///"):
            raise ConfigError(
                f"ledger.url names a database that is not supported: {url.partition('://')[0]}",
                hint="Use a SQLite file or postgresql://…",
            )
        return self.path(url.removeprefix("sqlite:///"))

    @property
    def ledger_url(self) -> str:
        """The PostgreSQL database, as SQLAlchemy wants it."""
        return "postgresql+psycopg://" + self._ledger.partition("://")[2]

    @property
    def _ledger(self) -> str:
        return resolve_secret(self.settings.ledger.url) or ""


def find_config(explicit: str | Path | None, environ: Mapping[str, str], here: Path) -> Path:
    """The path of the settings file: the one given, else the one in `STRANDLINE_CONFIG`, else the one in this folder.
    Raises ConfigError."""
    named = explicit or environ.get("STRANDLINE_CONFIG")
    path = Path(named) if named else here / CONFIG_NAME
    if path.is_dir():
        path = path / CONFIG_NAME
    if not path.is_file():
        raise ConfigError(
            f"there is no settings file at {path}",
            hint="Make a lake with `strandline init`, or name its file with --config.",
        )
    return path


def load_config(path: Path, content: bytes | None = None) -> LakeConfig:
    """`content`: what the file held when the caller read it."""
    try:
        values: dict[str, Any] = tomllib.loads((path.read_bytes() if content is None else content).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not TOML: {e}") from e
    _check_environment(os.environ)
    try:
        settings = Settings(**with_environment(values, Settings, os.environ))
        return LakeConfig(settings, path.parent.resolve(), _named_settings(values, os.environ))
    except ValidationError as e:
        unknown = [err["loc"] for err in e.errors() if err["type"] == "extra_forbidden"]
        lines = "; ".join(
            unknown_setting(err["loc"])
            if err["loc"] in unknown
            else f"{'.'.join(map(str, err['loc']))}: {err['msg'].removeprefix('Value error, ')}"
            for err in e.errors()
        )
        raise ConfigError(f"{path}: {lines}", hint="`docs/settings.md` explains every setting.") from e


def _named_settings(values: Mapping[str, Any], environ: Mapping[str, str]) -> frozenset[str]:
    """The dotted names of settings that are set, such as `maintain.runs_kept`."""
    in_file = {f"{section}.{name}" for section, table in values.items() if isinstance(table, dict) for name in table}
    in_environment = {v.removeprefix(PREFIX).lower().replace(NESTED, ".") for v in environ if v.startswith(PREFIX)}
    # A variable may hold a whole section as JSON. Then all its settings count as named.
    whole = {name for name in _setting_names(Settings) if name.partition(".")[0] in in_environment}
    return frozenset(in_file | in_environment | whole)


def unknown_setting(location: Sequence[int | str]) -> str:
    """A message that the setting does not exist, with similar names of its own section or of others."""
    name = ".".join(map(str, location))
    known = _setting_names(Settings)
    section, _, last = name.rpartition(".")
    beside = [s for s in known if s.rpartition(".")[0] == section]
    elsewhere = {s.rpartition(".")[2]: s for s in reversed(known)}
    near = [s for n in nearest(last, (s.rpartition(".")[2] for s in beside)) for s in beside if s.endswith(n)]
    near = near or [elsewhere[n] for n in nearest(last, elsewhere, 1)] or nearest(name, known)
    if near:
        return f"there is no setting {name}; perhaps {' or '.join(near)} is meant"
    return f"there is no setting {name}" + (f"; {section} has {', '.join(s for s in beside)}" if beside else "")


def _setting_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        names.append(prefix + name)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += _setting_names(inner, f"{prefix}{name}.")
        elif get_origin(inner) is dict and issubclass(get_args(inner)[1], BaseModel):
            names += _setting_names(get_args(inner)[1], f"{prefix}{name}.NAME.")
    return names


def _check_environment(environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a section that does not exist. pydantic checks only the names within a section."""
    for variable in environ:
        section, nested, rest = variable.removeprefix(PREFIX).partition(NESTED)
        if variable.startswith(PREFIX) and nested and section.lower() not in Settings.model_fields:
            what = unknown_setting([section.lower(), rest.lower().replace(NESTED, ".")])
            raise ConfigError(
                f"{variable} in the environment: {what}",
                hint="`docs/settings.md` explains every setting.",
            )
