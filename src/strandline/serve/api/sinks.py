"""Sinks: list, show, add, update, remove, pause, resume; and as tasks tick, reset, recover, verify."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from strandline.core.calling_off import check_going
from strandline.core.documents import Document, fields_of
from strandline.core.errors import DestinationTaken, NoSuchSink, UsageError
from strandline.core.roles import Role
from strandline.serve.api.inputs import (
    AfterId,
    AfterName,
    Body,
    DryRun,
    Limit,
    LongText,
    Name,
    NamePath,
    Text,
    cut,
    paged,
)
from strandline.serve.api.tasks import TASK_STARTED, done_or_started, start_task
from strandline.serve.auth import lending
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.needs import needs
from strandline.serve.context import ServeContext, context_of
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
from strandline.status import documents, sinks
from strandline.status.whole_sinks import state_of

router = APIRouter(prefix="/sinks", tags=["sinks"])

Options = dict[Text, LongText]


class NewSink(Body):
    name: Name
    dataset: Name = Field(description="The dataset to deliver.")
    kind: Name = Field(description="`files`, `s3`, `postgres`, `forward`, or a kind from an installed package.")
    options: Options = Field(default={}, description="A value `env:NAME` is read when it is needed, and never stored.")
    start: Literal["beginning", "now"] = Field(default="beginning", description="All settled rows, or new ones only.")


class SinkChanges(Body):
    options: Options = Field(default={}, description="Options that change.")
    unset: list[Text] = Field(default=[], description="Options that go back to their default.")


class Tick(Body):
    dry_run: bool = Field(default=False, description="Report what would be sent; send and store nothing.")


class Reset(Body):
    to: LongText = Field(description="`beginning`, or a continuation token: it begins after the token's row.")
    dry_run: bool = Field(default=False, description="Report what would be delivered again, and where; change nothing.")


class Recover(Body):
    resend: bool = Field(default=False, description="What the destination has lost is sent again, in a new generation.")
    accept_loss: bool = Field(default=False, description="What the destination has lost is given up, audited.")
    dry_run: bool = Field(default=False, description="Report what it lacks and what would be done; change nothing.")


class Verify(Body):
    taken_is_fine: bool = Field(default=False, description="Objects that a consumer took away are no loss.")


_OTHER_PLACE = "Two sinks must not share a destination: choose another place."


def _may_know(context: ServeContext, caller: Caller, error: DestinationTaken) -> bool:
    """Whether the caller may know who delivers to the place."""
    if error.sink is not None and caller.is_limited:
        try:
            check_sink(context, caller, error.sink)
        except NoSuchSink:
            return False
        return True
    return not caller.is_limited or (error.dataset is not None and caller.sees(error.dataset))


def check_sink(context: ServeContext, caller: Caller, name: str) -> str:
    """The name, if the caller may see the sink. Raises NoSuchSink."""
    record = context.lake.delivery.get(name)
    if not caller.sees(context.lake.delivery.dataset_name(record)):
        raise NoSuchSink(f"there is no sink {name}", hint="`GET /api/v1/sinks` lists them.")
    return record.name


@router.get(
    "",
    summary="All sinks, each with its first lanes",
    **documented(page_of("sinks", SINK_WITH_LANES)),
)
async def list_sinks(
    request: Request, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterName = None
) -> Response:
    context = context_of(request)

    def load() -> Document:
        by_name: dict[str, list[sinks.SinkStatus]] = {}
        for lane in sinks.load_sinks(context.lake.ledger, context.lake.id):
            if caller.sees(lane.dataset) and (after is None or lane.name > after):
                by_name.setdefault(lane.name, []).append(lane)

        def show(name: str) -> Document:
            lanes = list(map(documents.sink_status, by_name[name]))
            return cut({"name": name, "lanes": lanes}, "lanes", most=LANES_IN_LIST_MAX)

        return paged("sinks", sorted(by_name), limit, show, lambda name: name)

    return await context.read(caller, load)


@router.post("", summary="Add a sink", **done_or_started(SINK, status=201, said="Added."))
async def add_sink(request: Request, wanted: NewSink, caller: Caller = needs(Role.ADMIN)) -> Response:
    """The destination is looked at and claimed before anything is recorded. With the option `where` it is a task,
    because Spark checks the condition. A token that is limited to datasets adds sinks of kind `forward` only, without a
    secret."""
    context = context_of(request)
    lending.check_new_sink(caller, wanted.kind, wanted.options)

    def add() -> Document:
        dataset = caller.check_sees(wanted.dataset)
        try:
            made = context.lake.delivery.add(
                wanted.name, dataset, wanted.kind, wanted.options, from_now=wanted.start == "now"
            )
        except DestinationTaken as e:
            if not _may_know(context, caller, e):
                raise DestinationTaken(
                    "somebody else delivers to this destination, or to a place in it or around it", hint=_OTHER_PLACE
                ) from None
            raise
        return documents.sink(made, dataset)

    def check() -> str:
        context.lake.dataset(caller.check_sees(wanted.dataset))
        return wanted.name

    if "where" in wanted.options:
        return await start_task(context, caller, "add_sink", check, lambda stopping: add())
    return await context.change(caller, add, status=201)


@router.get(
    "/{name}", summary="One sink: options, watermarks, what is under way", **documented(SINK_IN_FULL, problems=NAMED)
)
async def show_sink(request: Request, name: NamePath, caller: Caller = needs(Role.READ)) -> Response:
    context = context_of(request)

    def load() -> Document:
        found = load_sink(context, caller, name)
        found["open_intents"] = [cut(intent, "chunks") for intent in found["open_intents"]]
        return cut(found, "lanes", "open_intents")

    return await context.read(caller, load)


def check_own_sink(context: ServeContext, caller: Caller, name: str) -> str:
    """As `check_sink`. Raises NotLeader at a site that does not deliver."""
    known = check_sink(context, caller, name)
    context.lake.replication.check_leads()
    return known


def load_sink(context: ServeContext, caller: Caller, name: str) -> Document:
    """With all lanes and open intents. Raises NoSuchSink."""
    record = context.lake.delivery.get(check_sink(context, caller, name))
    lanes = sinks.load_sinks(context.lake.ledger, context.lake.id, record.name)
    return documents.sink_in_full(record, lanes, context.lake.delivery.open_intents(record))


@router.get(
    "/{name}/lanes",
    summary="Its lanes, oldest first",
    **documented(page_of("lanes", SINK_LANE, NUMBER), problems=NAMED),
)
async def list_lanes(
    request: Request, name: NamePath, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterId = None
) -> Response:
    context = context_of(request)

    def load() -> Document:
        known = check_sink(context, caller, name)
        lanes = sinks.load_lanes(context.lake.ledger, context.lake.id, known)
        found = [lane for lane in lanes if after is None or lane[0] > after]
        # By number: a partition may be longer than the head of a request.
        return paged("lanes", found, limit, lambda lane: documents.sink_status(lane[1]), lambda lane: lane[0])

    return await context.read(caller, load)


@router.get(
    "/{name}/intents",
    summary="Its open intents, oldest first",
    **documented(page_of("intents", INTENT, NUMBER), problems=NAMED),
)
async def list_intents(
    request: Request, name: NamePath, caller: Caller = needs(Role.READ), limit: Limit = 100, after: AfterId = None
) -> Response:
    context = context_of(request)

    def load() -> Document:
        record = context.lake.delivery.get(check_sink(context, caller, name))
        intents = sorted(context.lake.delivery.open_intents(record), key=lambda intent: intent.id)
        found = [intent for intent in intents if after is None or intent.id > after]
        show = lambda intent: cut(documents.intent(intent), "chunks")  # noqa: E731
        return paged("intents", found, limit, show, lambda intent: intent.id)

    return await context.read(caller, load)


@router.patch("/{name}", summary="Change options", **done_or_started(SINK))
async def update_sink(
    request: Request, name: NamePath, changes: SinkChanges, caller: Caller = needs(Role.ADMIN)
) -> Response:
    """What was promised already is delivered with the old ones; nothing is sent again. With the option `where` it is a
    task, because Spark checks the condition. A token that is limited to datasets changes only options that every kind
    has."""
    context = context_of(request)

    def check() -> str:
        if not (changes.options or changes.unset):
            raise UsageError("nothing to change", hint="Say options or unset.")
        if both := sorted(changes.options.keys() & set(changes.unset)):
            raise UsageError(f"the option {both[0]} is both set and unset")
        known = check_sink(context, caller, name)
        lending.check_changed_sink(caller, {*changes.options, *changes.unset})
        return known

    def update() -> Document:
        return _sink(context, context.lake.delivery.update(check(), changes.options, changes.unset))

    if "where" in changes.options:
        return await start_task(context, caller, "update_sink", check, lambda stopping: update())
    return await context.change(caller, update)


def _sink(context: ServeContext, record: Any) -> Document:
    return documents.sink(record, context.lake.delivery.dataset_name(record))


@router.delete("/{name}", summary="Remove a sink", **documented(SINK_REMOVED, problems=CHANGES))
async def remove_sink(
    request: Request, name: NamePath, caller: Caller = needs(Role.ADMIN), dry_run: DryRun = False
) -> Response:
    """It gets no more rows: neither those that it lags behind, nor those of its open intents, nor those in its
    quarantine. What was delivered stays where it is."""
    context = context_of(request)

    def remove() -> Document:
        delivery = context.lake.delivery
        record = delivery.get(check_sink(context, caller, name))
        lanes = sinks.load_sinks(context.lake.ledger, context.lake.id, record.name)
        given_up = documents.sink_in_full(record, lanes, delivery.open_intents(record))
        if not dry_run:
            delivery.remove(record.name)
        return {
            "removed": record.name,
            "dry_run": dry_run,
            "destination": given_up["destination"],
            "lag_rows": given_up["lag_rows"],
            "open_intents": len(given_up["open_intents"]),
            "quarantined_rows": sum(lane.quarantined for lane in lanes),
        }

    return await context.change(caller, remove)


@router.post("/{name}/pause", summary="Deliver nothing more until it is resumed", **documented(SINK, problems=CHANGES))
async def pause_sink(request: Request, name: NamePath, caller: Caller = needs(Role.ADMIN)) -> Response:
    context = context_of(request)
    pause = lambda: _sink(context, context.lake.delivery.pause(check_sink(context, caller, name)))  # noqa: E731
    return await context.change(caller, pause)


@router.post(
    "/{name}/resume",
    summary="Go on with a sink that is paused, waits or was stopped",
    **documented(SINK, problems=CHANGES),
)
async def resume_sink(request: Request, name: NamePath, caller: Caller = needs(Role.ADMIN)) -> Response:
    context = context_of(request)
    resume = lambda: _sink(context, context.lake.delivery.resume(check_sink(context, caller, name)))  # noqa: E731
    return await context.change(caller, resume)


@router.post("/{name}/tick", summary="Deliver once", **TASK_STARTED)
async def tick_sink(request: Request, name: NamePath, wanted: Tick, caller: Caller = needs(Role.ADMIN)) -> Response:
    """Every settled row that the sink does not have yet; or, as a dry run, what would be sent."""
    context = context_of(request)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        if wanted.dry_run:
            found = _preview(context, name)
            check_going()
            return found
        began = time.monotonic()
        context.lake.delivery.recovery.catch_up()
        report = context.lake.delivery.tick(name, stopping=stopping)
        check_going()
        return documents.tick(report, time.monotonic() - began)

    check = check_sink if wanted.dry_run else check_own_sink
    kind = "tick_dry_run" if wanted.dry_run else "tick"
    return await start_task(context, caller, kind, lambda: check(context, caller, name), work)


def _preview(context: ServeContext, name: str) -> Document:
    from strandline.deliver.plan.preview import SinkPreview

    delivery = context.lake.delivery
    return documents.tick_preview([SinkPreview(name, state_of(delivery.get(name)), delivery.preview(name), None)])


@router.post("/{name}/reset", summary="Deliver again, in a new generation", **TASK_STARTED)
async def reset_sink(request: Request, name: NamePath, wanted: Reset, caller: Caller = needs(Role.ADMIN)) -> Response:
    """With watermarks of its own, into a place of its own beside the old one. Whoever reads both gets rows twice."""
    context = context_of(request)
    to = None if wanted.to == "beginning" else wanted.to

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        if wanted.dry_run:
            plan = fields_of(context.lake.delivery.plan_reset(name, to=to))
            check_going()
            return plan
        return _sink(context, context.lake.delivery.reset(name, to=to, going=check_going))

    kind = "reset_dry_run" if wanted.dry_run else "reset"
    return await start_task(context, caller, kind, lambda: check_own_sink(context, caller, name), work)


@router.post("/{name}/recover", summary="Read from the destination how far it is, and go on from there", **TASK_STARTED)
async def recover_sink(
    request: Request, name: NamePath, wanted: Recover, caller: Caller = needs(Role.ADMIN)
) -> Response:
    """If it lacks what it acknowledged, nothing is changed until `resend` or `accept_loss` says what to do about it."""
    context = context_of(request)

    def check() -> str:
        if wanted.resend and wanted.accept_loss:
            raise UsageError("either resend or accept_loss, not both")
        return check_own_sink(context, caller, name)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        how = {"resend": wanted.resend, "accept_loss": wanted.accept_loss, "dry_run": wanted.dry_run}
        found = context.lake.delivery.recover_sink(name, **how, going=check_going)
        return documents.recovered_sink(found)

    return await start_task(context, caller, "recover_dry_run" if wanted.dry_run else "recover", check, work)


@router.post("/{name}/verify", summary="Prove that it holds every row that was delivered to it, once", **TASK_STARTED)
async def verify_sink(request: Request, name: NamePath, wanted: Verify, caller: Caller = needs(Role.ADMIN)) -> Response:
    """Reads everything that the sink holds and builds it again from the lake; changes nothing."""
    context = context_of(request)

    def work(stopping: threading.Event) -> Mapping[str, Any]:
        report = context.lake.delivery.verify(
            name,
            taken_is_fine=wanted.taken_is_fine,
            progress=lambda sink, what, done, total: check_going(),
        )
        return documents.verify(report)

    return await start_task(context, caller, "verify", lambda: check_sink(context, caller, name), work)
