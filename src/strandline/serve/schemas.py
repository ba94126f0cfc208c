"""The schemas of what the API answers, by the values behind them and `status/documents/lake_documents.py`."""

from __future__ import annotations

from strandline.core.delivery_types import SinkRecord
from strandline.core.records.reconcile_records import ReconcileRun, SweepOutcome, Swept
from strandline.core.sites.arbiter import LeaderRecord
from strandline.core.types import Dataset, ItemKind
from strandline.ledger.audit import AuditEvent
from strandline.ledger.maintain.runs import MaintenanceRun
from strandline.ledger.receive.tokens import Token
from strandline.ledger.replicate.cuts import CutFolder
from strandline.ledger.replicate.followers import RegisteredFollower
from strandline.ledger.tasks import Task
from strandline.serve.describe import (
    ANY,
    COUNT,
    FLAG,
    MOMENT,
    NUMBER,
    OPEN,
    TEXT,
    Schema,
    also,
    fields,
    first_of,
    list_of,
    of_value,
    one_of,
    or_null,
    without,
)
from strandline.status.consumers import ConsumerStatus
from strandline.status.documents.reconcile_documents import NOT_KNOWN_AT_FIRST, SHOWN_OF_ANY_RUN
from strandline.status.documents.replication_documents import NOT_SHOWN_OF_RECORD
from strandline.status.followers import FollowerStatus
from strandline.status.leadership import ArbiterStatus, Leadership
from strandline.status.problems.status_problem import StatusProblem
from strandline.status.reconciliation import Reconciliation
from strandline.status.replication import FollowedStatus, SiteStatus
from strandline.status.report import LakeStatus
from strandline.status.sinks import SinkStatus

_WHO: dict[str, Schema] = {"actor": or_null(TEXT), "trigger": or_null(TEXT)}
_SPAN = fields(**{"from": or_null(NUMBER), "to": or_null(NUMBER)})

SINK_LANE = also(of_value(SinkStatus), open_intent=or_null(OPEN), last_batch=or_null(OPEN))
LAKE_STATUS = also(
    of_value(LakeStatus),
    sequence=or_null(NUMBER),  # null for a token that is limited to some datasets, like all that is of the whole lake
    problems=list_of(of_value(StatusProblem)),
    sinks=list_of(SINK_LANE),
    maintenance=or_null(OPEN),
)
DATASET = without(of_value(Dataset), "id")
DATASET_IN_FULL = also(DATASET, columns=list_of(OPEN), problem=or_null(TEXT))
DATASET_ALTERED = also(DATASET_IN_FULL, changes=list_of(TEXT), dry_run=FLAG)
DATASET_DROPPED = fields(dropped=TEXT, dry_run=FLAG, allocated=or_null(NUMBER))
BLOCK = fields(
    lo=NUMBER,
    hi=NUMBER,
    item=one_of(tuple(ItemKind)),
    kind=TEXT,
    shard=or_null(COUNT),
    batch_id=TEXT,
    reserved_at=MOMENT,
    state=one_of(("reserved", "staged", "published", "abandoned")),
    rows=or_null(COUNT),
    changed_at=or_null(MOMENT),
    reason=or_null(TEXT),
)
SEAL = fields(
    dataset=TEXT,
    sealed=or_null(NUMBER),
    allocated=or_null(NUMBER),
    **first_of("open_blocks", BLOCK, "GET …/datasets/{name}/blocks?only_open=true"),
)
_CHUNK = also(_SPAN, rows=or_null(COUNT), state=TEXT, expected=COUNT)
INTENT = also(_SPAN, partition=or_null(TEXT), opened_at=MOMENT, options=OPEN, **first_of("chunks", _CHUNK, None))
SINK = also(without(of_value(SinkRecord), "id", "failures", "retry_at", "peer", "failing_since"), dataset=TEXT)
SINK_IN_FULL = also(
    SINK,
    retries=COUNT,
    lag_rows=or_null(COUNT),
    lag_seconds=or_null({"type": "number"}),
    **first_of("lanes", SINK_LANE, "GET …/sinks/{name}/lanes"),
    **first_of("open_intents", INTENT, "GET …/sinks/{name}/intents"),
)
SINK_IN_FULL["properties"]["state"] = TEXT
LANES_IN_LIST_MAX = 10  # of one sink among many
SINK_WITH_LANES = fields(name=TEXT, **first_of("lanes", SINK_LANE, "GET …/sinks/{name}/lanes", LANES_IN_LIST_MAX))
SINK_REMOVED = fields(
    removed=TEXT,
    dry_run=FLAG,
    destination=TEXT,
    lag_rows=or_null(COUNT),
    open_intents=COUNT,
    quarantined_rows=COUNT,
)
CONSUMER = of_value(ConsumerStatus)
CONSUMER_REMOVED = fields(removed=TEXT, dataset=TEXT, dry_run=FLAG, lag_rows=COUNT)
FOLLOWED_SHARD = of_value(FollowedStatus)
FOLLOWER_SHARD = of_value(FollowerStatus)
_ARBITER = also(of_value(ArbiterStatus), record=or_null(without(of_value(LeaderRecord), *NOT_SHOWN_OF_RECORD)))
REPLICATION = also(
    of_value(SiteStatus),
    lake=TEXT,
    leadership=also(of_value(Leadership), arbiter=or_null(_ARBITER)),
    **first_of("set_aside", of_value(CutFolder), None),
    **first_of("shards", FOLLOWED_SHARD, "GET …/replication/shards"),
    **first_of("followers", FOLLOWER_SHARD, "GET …/replication/followers"),
)
FOLLOWER = also(without(of_value(RegisteredFollower), "id", "token"), datasets=or_null(list_of(TEXT)))
FOLLOWER_WITH_SHARDS = also(FOLLOWER, **first_of("shards", FOLLOWER_SHARD, "GET …/replication/followers/{name}/shards"))
FOLLOWER_REMOVED = fields(removed=TEXT, dry_run=FLAG, lag_rows=or_null(COUNT), holds_retention_of=list_of(TEXT))
QUARANTINED_ROW = fields(
    sink=TEXT,
    number=NUMBER,
    partition=or_null(TEXT),
    object=TEXT,
    row=ANY,
    problem=or_null(TEXT),
    reason=TEXT,
    state=TEXT,
)
QUARANTINED_FILE = also(without(of_value(Swept), "id", "modified_ns", "begun_at", "changed_at"), at=MOMENT)
FILE_OF_A_RUN = without(QUARANTINED_FILE, "run")
MAINTENANCE_RUN = also(
    without(of_value(MaintenanceRun), "id", "heartbeat_at", "actor"),
    run=NUMBER,
    seconds=or_null({"type": "number"}),
    **_WHO,
)
_OF_OUTCOME = without(of_value(SweepOutcome), "tables", "sequences", "vanished", "clock", "settled")["properties"]
RECONCILE_RUN = also(
    also(without(of_value(ReconcileRun), "id", "asked", "outcome", "folder", "actor"), **_WHO),
    run=NUMBER,
    dry_run=FLAG,
    delete=FLAG,
    accept_loss=FLAG,
    doubts=list_of(TEXT),
    **{name: or_null(schema) if name in NOT_KNOWN_AT_FIRST else schema for name, schema in _OF_OUTCOME.items()},
)
RECONCILE_RUN_WITH_FILES = also(
    RECONCILE_RUN, **first_of("files", FILE_OF_A_RUN, "GET …/reconciliation/runs/{run}/files")
)
_RUN_FOR_LIMITED = fields(
    **{
        name: schema if name in SHOWN_OF_ANY_RUN else {"type": "null"}
        for name, schema in RECONCILE_RUN["properties"].items()
    }
)
RECONCILIATION = also(of_value(Reconciliation), last_run={"anyOf": [RECONCILE_RUN, _RUN_FOR_LIMITED, {"type": "null"}]})
TOKEN = without(of_value(Token), "id", "owner")
TOKEN_REVOKED = fields(name=TEXT, revoked=FLAG)
AUDIT_EVENT = also(without(of_value(AuditEvent), "actor", "detail"), detail=OPEN, **_WHO)
TASK = also(without(of_value(Task), "id", "lease_until", "actor"), task=NUMBER, attention=or_null(TEXT), **_WHO)
