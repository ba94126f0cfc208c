"""Sinks: list, show, add, update, remove, pause, resume; and as tasks tick, reset, recover, verify."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from strandline.core.calling_off import check_not_called_off
from strandline.core.documents import Document, fields_of
from strandline.core.errors import DestinationTaken, NoSuchSink, UsageError
from strandline.serve.api.handlers import changes_lake, reads
from strandline.serve.api.inputs import (
    AfterId,
    AfterName,
    DryRun,
    Limit,
    LongText,
    Name,
    NamePath,
    RequestInput,
    Text,
    cut,
    paged_after,
)
from strandline.serve.api.tasks import TASK_STARTED, done_or_started, start_task, stop_if_cancelled
from strandline.serve.auth import lending
from strandline.serve.auth.needs import Access, AdminAccess, ReadAccess
from strandline.serve.describe import CHANGES, NAMED, NUMBER, documented, page_of
from strandline.serve.schemas import (
    INTENT,
    LANES_IN_LIST_MAX,
    SINK,
    SINK_IN_FULL,
    SINK_LANE,
    SINK_REMOVED,
    SINK_WITH_LANES,
)
from strandline.status import sinks
from strandline.status.documents import change_documents, lake_documents
from strandline.status.whole_sinks import state_of

router = APIRouter(prefix="/sinks", tags=["sinks"])

SinkOptionsInput = dict[Text, LongText]


class NewSink(RequestInput):
    name: Name
    dataset: Name = Field(description="The dataset to deliver.")
    kind: Name = Field(description="`files`, `s3`, `postgres`, `forward`, or a kind from an installed package.")
    options: SinkOptionsInput = Field(
        default={}, description="A value `env:NAME` is read when it is needed, and never stored."
    )
    start: Literal["beginning", "now"] = Field(default="beginning", description="All settled rows, or new ones only.")


class SinkChanges(RequestInput):
    options: SinkOptionsInput = Field(default={}, description="Options that change.")
    unset: list[Text] = Field(default=[], description="Options that go back to their default.")


class Tick(RequestInput):
    dry_run: bool = Field(default=False, description="Report what would be sent; send and store nothing.")


class Reset(RequestInput):
    to: LongText = Field(description="`beginning`, or a continuation token: it begins after the token's row.")
    dry_run: bool = Field(default=False, description="Report what would be delivered again, and where; change nothing.")


class Recover(RequestInput):
    resend: bool = Field(default=False, description="What the destination has lost is sent again, in a new generation.")
    accept_loss: bool = Field(default=False, description="What the destination has lost is given up, audited.")
    dry_run: bool = Field(default=False, description="Report what it lacks and what would be done; change nothing.")


class Verify(RequestInput):
    taken_is_fine: bool = Field(default=False, description="Objects that a consumer took away are no loss.")


_OTHER_PLACE = "Two sinks must not share a destination: choose another place."


def _may_know(access: Access, error: DestinationTaken) -> bool:
    """Whether the caller may know who delivers to the place."""
    if error.sink is not None and access.caller.is_limited:
        try:
            check_sink(access, error.sink)
        except NoSuchSink:
            return False
        return True
    return not access.caller.is_limited or (error.dataset is not None and access.caller.sees(error.dataset))


def check_sink(access: Access, name: str) -> str:
    """The name, if the caller may see the sink. Raises NoSuchSink."""
    record = access.lake.delivery.get(name)
    if not access.caller.sees(access.lake.delivery.dataset_name(record)):
        raise NoSuchSink(f"there is no sink {name}", hint="`GET /api/v1/sinks` lists them.")
    return record.name


@router.get("", summary="All sinks, each with its first lanes", **documented(page_of("sinks", SINK_WITH_LANES)))
@reads
def list_sinks(access: ReadAccess, limit: Limit = 100, after: AfterName = None) -> Document:
    by_name: dict[str, list[sinks.SinkStatus]] = {}
    for lane in sinks.load_sinks(access.lake.ledger, access.lake.id):
        if access.caller.sees(lane.dataset):
            by_name.setdefault(lane.name, []).append(lane)

    def show(name: str) -> Document:
        lanes = list(map(lake_documents.sink_status, by_name[name]))
        return cut({"name": name, "lanes": lanes}, "lanes", most=LANES_IN_LIST_MAX)

    return paged_after("sinks", by_name, after, limit, show, str)


@router.post("", summary="Add a sink", **done_or_started(SINK, status=201, said="Added."))
async def add_sink(access: AdminAccess, wanted: NewSink) -> Response:
    """Inspects the destination and claims it before anything is recorded. With the option `where` it is a task,
    because Spark checks the condition. A token that is limited to datasets adds sinks of kind `forward` only, without a
    secret."""
    lending.check_new_sink(access.caller, wanted.kind, wanted.options)

    def add() -> Document:
        dataset = access.caller.check_sees(wanted.dataset)
        try:
            made = access.lake.delivery.add(
                wanted.name, dataset, wanted.kind, wanted.options, from_now=wanted.start == "now"
            )
        except DestinationTaken as e:
            if not _may_know(access, e):
                raise DestinationTaken(
                    "somebody else delivers to this destination, or to a place in it or around it", hint=_OTHER_PLACE
                ) from None
            raise
        return lake_documents.sink(made, dataset)

    def check() -> str:
        access.lake.dataset(access.caller.check_sees(wanted.dataset))
        return wanted.name

    if "where" in wanted.options:
        return await start_task(access, "add_sink", check, lambda stopping: add())
    return await access.context.change(access.caller, add, status=201)


@router.get(
    "/{name}", summary="One sink: options, watermarks, what is under way", **documented(SINK_IN_FULL, problems=NAMED)
)
@reads
def show_sink(access: ReadAccess, name: NamePath) -> Document:
    found = load_sink(access, name)
    found["open_intents"] = [cut(intent, "chunks") for intent in found["open_intents"]]
    return cut(found, "lanes", "open_intents")


def check_own_sink(access: Access, name: str) -> str:
    """As `check_sink`. Raises NotLeader at a site that does not deliver."""
    known = check_sink(access, name)
    access.lake.replication.check_leads()
    return known


def load_sink(access: Access, name: str) -> Document:
    """With all lanes and open intents. Raises NoSuchSink."""
    record = access.lake.delivery.get(check_sink(access, name))
    lanes = sinks.load_sinks(access.lake.ledger, access.lake.id, record.name)
    return lake_documents.sink_in_full(record, lanes, access.lake.delivery.open_intents(record))


@router.get(
    "/{name}/lanes",
    summary="Its lanes, oldest first",
    **documented(page_of("lanes", SINK_LANE, NUMBER), problems=NAMED),
)
@reads
def list_lanes(access: ReadAccess, name: NamePath, limit: Limit = 100, after: AfterId = None) -> Document:
    lanes = sinks.load_lanes(access.lake.ledger, access.lake.id, check_sink(access, name))
    # By number: a partition may be longer than the head of a request.
    return paged_after(
        "lanes", lanes, after, limit, lambda lane: lake_documents.sink_status(lane[1]), lambda lane: lane[0]
    )


@router.get(
    "/{name}/intents",
    summary="Its open intents, oldest first",
    **documented(page_of("intents", INTENT, NUMBER), problems=NAMED),
)
@reads
def list_intents(access: ReadAccess, name: NamePath, limit: Limit = 100, after: AfterId = None) -> Document:
    record = access.lake.delivery.get(check_sink(access, name))
    opened = access.lake.delivery.open_intents(record)
    return paged_after(
        "intents", opened, after, limit, lambda i: cut(lake_documents.intent(i), "chunks"), lambda i: i.id
    )


@router.patch("/{name}", summary="Change options", **done_or_started(SINK))
async def update_sink(access: AdminAccess, name: NamePath, changes: SinkChanges) -> Response:
    """What was promised already is delivered with the old ones; nothing is sent again. With the option `where` it is a
    task, because Spark checks the condition. A token that is limited to datasets changes only options that every kind
    has."""

    def check() -> str:
        if not (changes.options or changes.unset):
            raise UsageError("nothing to change", hint="Give options or unset.")
        if both := sorted(changes.options.keys() & set(changes.unset)):
            raise UsageError(f"the option {both[0]} is both set and unset")
        known = check_sink(access, name)
        lending.check_changed_sink(access.caller, {*changes.options, *changes.unset})
        return known

    def update() -> Document:
        return _sink(access, access.lake.delivery.update(check(), changes.options, changes.unset))

    if "where" in changes.options:
        return await start_task(access, "update_sink", check, lambda stopping: update())
    return await access.context.change(access.caller, update)


def _sink(access: Access, record: Any) -> Document:
    return lake_documents.sink(record, access.lake.delivery.dataset_name(record))


@router.delete("/{name}", summary="Remove a sink", **documented(SINK_REMOVED, problems=CHANGES))
@changes_lake()
def remove_sink(access: AdminAccess, name: NamePath, dry_run: DryRun = False) -> Document:
    """It gets no more rows: neither those that it lags behind, nor those of its open intents, nor those in its
    quarantine. What was delivered stays where it is."""
    delivery = access.lake.delivery
    record = delivery.get(check_sink(access, name))
    lanes = sinks.load_sinks(access.lake.ledger, access.lake.id, record.name)
    document = change_documents.removed_sink(record, lanes, delivery.open_intents(record), dry_run=dry_run)
    if not dry_run:
        delivery.remove(record.name)
    return document


@router.post("/{name}/pause", summary="Deliver nothing more until it is resumed", **documented(SINK, problems=CHANGES))
@changes_lake()
def pause_sink(access: AdminAccess, name: NamePath) -> Document:
    return _sink(access, access.lake.delivery.pause(check_sink(access, name)))


@router.post(
    "/{name}/resume",
    summary="Continue with a sink that is paused, waiting or stopped",
    **documented(SINK, problems=CHANGES),
)
@changes_lake()
def resume_sink(access: AdminAccess, name: NamePath) -> Document:
    return _sink(access, access.lake.delivery.resume(check_sink(access, name)))


@router.post("/{name}/tick", summary="Deliver once", **TASK_STARTED)
async def tick_sink(access: AdminAccess, name: NamePath, wanted: Tick) -> Response:
    """Every settled row that the sink does not have yet; or, as a dry run, what would be sent."""

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        if wanted.dry_run:
            found = _preview(access, name)
            check_not_called_off()
            return found
        began = time.monotonic()
        access.lake.delivery.recovery.catch_up()
        report = access.lake.delivery.tick(name, stopping=stopping)
        check_not_called_off()
        return lake_documents.tick(report, time.monotonic() - began)

    check = check_sink if wanted.dry_run else check_own_sink
    kind = "tick_dry_run" if wanted.dry_run else "tick"
    return await start_task(access, kind, lambda: check(access, name), work)


def _preview(access: Access, name: str) -> Document:
    from strandline.deliver.plan.preview import SinkPreview

    delivery = access.lake.delivery
    return lake_documents.tick_preview([SinkPreview(name, state_of(delivery.get(name)), delivery.preview(name), None)])


@router.post("/{name}/reset", summary="Deliver again, in a new generation", **TASK_STARTED)
async def reset_sink(access: AdminAccess, name: NamePath, wanted: Reset) -> Response:
    """With watermarks of its own, into a place of its own beside the old one. Whoever reads both gets rows twice."""
    to = None if wanted.to == "beginning" else wanted.to

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        if wanted.dry_run:
            plan = fields_of(access.lake.delivery.plan_reset(name, to=to))
            check_not_called_off()
            return plan
        return _sink(access, access.lake.delivery.reset(name, to=to))

    kind = "reset_dry_run" if wanted.dry_run else "reset"
    return await start_task(access, kind, lambda: check_own_sink(access, name), work)


@router.post("/{name}/recover", summary="Read from the destination how far it is, and continue there", **TASK_STARTED)
async def recover_sink(access: AdminAccess, name: NamePath, wanted: Recover) -> Response:
    """If it lacks what it acknowledged, nothing is changed until `resend` or `accept_loss` says what to do about it."""

    def check() -> str:
        if wanted.resend and wanted.accept_loss:
            raise UsageError("either resend or accept_loss, not both")
        return check_own_sink(access, name)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        how = {"resend": wanted.resend, "accept_loss": wanted.accept_loss, "dry_run": wanted.dry_run}
        found = access.lake.delivery.recover_sink(name, **how)
        return lake_documents.recovered_sink(found)

    return await start_task(access, "recover_dry_run" if wanted.dry_run else "recover", check, work)


@router.post("/{name}/verify", summary="Prove that it holds every row that was delivered to it, once", **TASK_STARTED)
async def verify_sink(access: AdminAccess, name: NamePath, wanted: Verify) -> Response:
    """Reads everything that the sink holds and builds it again from the lake; changes nothing."""

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        delivery = access.lake.delivery
        return lake_documents.verify(
            delivery.verify(name, taken_is_fine=wanted.taken_is_fine, progress=stop_if_cancelled)
        )

    return await start_task(access, "verify", lambda: check_sink(access, name), work)
