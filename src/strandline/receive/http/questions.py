"""Answers a sender's questions: who claimed its lanes, which ranges are held, which rows really exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from strandline.core.errors import UsageError
from strandline.core.forward_protocol import PARTITION_BYTES_MAX, Answer, LaneName
from strandline.core.sites.replication import FIRST_TERM
from strandline.core.text.bounded_text import NAME_BYTES_MAX, check_text
from strandline.core.types import SEQ_MAX, Seq
from strandline.ledger.engine import Connection
from strandline.ledger.receive import senders
from strandline.ledger.receive.senders import SourceRecord
from strandline.receive.http import answers
from strandline.receive.http.answers import EarlyReply, Reply
from strandline.receive.http.caches import ReceiverCaller
from strandline.receive.http.request_handler import RequestHandler


def _storable(bytes_max: int) -> AfterValidator:
    def check(text: str) -> str:
        try:
            return check_text("this", text, bytes_max)
        except UsageError as e:
            raise ValueError(e.message) from None

    return AfterValidator(check)


SenderText = Annotated[str, Field(min_length=1, max_length=NAME_BYTES_MAX), _storable(NAME_BYTES_MAX)]
Partition = Annotated[str, Field(max_length=PARTITION_BYTES_MAX), _storable(PARTITION_BYTES_MAX)]
PositiveNumber = Annotated[int, Field(ge=1, le=SEQ_MAX)]


LANES_AT_ONCE_MAX = 1000
# in one answer to `held`, about 2 MiB; a sender asks again for ranges after the last one
HELD_RANGES_AT_ONCE_MAX = 20_000
QUESTION_BYTES_MAX = 4 << 20  # a thousand lanes, each with the longest name


class _Question(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


_Asked = TypeVar("_Asked", bound=_Question)


class ClaimedQuestion(_Question):
    lake: SenderText
    dataset: SenderText = Field(description="The dataset's name in the sender's lake.")


class ClaimQuestion(ClaimedQuestion):
    instance: SenderText
    table_uuid: SenderText
    generation: PositiveNumber
    term: PositiveNumber = Field(FIRST_TERM, description="In which the sender's site leads its lake.")


class HeldLane(_Question):
    partition: Partition
    after: Annotated[int, Field(ge=0, le=SEQ_MAX)] | None = None


class _SenderQuestion(_Question):
    lake: SenderText
    instance: SenderText
    generation: PositiveNumber
    dataset: SenderText

    def lane(self, partition: str) -> LaneName:
        return LaneName(self.lake, self.instance, self.generation, self.dataset, partition)


class HeldQuestion(_SenderQuestion):
    lanes: Annotated[list[HeldLane], Field(max_length=LANES_AT_ONCE_MAX)]


class InspectQuestion(_SenderQuestion):
    partition: Partition
    lo: PositiveNumber
    hi: PositiveNumber


AnswerQuestion = Callable[[RequestHandler, Request, str], Awaitable[Reply]]


def _question(
    kind: type[_Asked],
) -> Callable[[Callable[[RequestHandler, ReceiverCaller, _Asked], Awaitable[Reply]]], AnswerQuestion]:
    """Checks the token and parses the question. A question counts like a body, but waiting rows do not hold it up."""

    def wrapped(answer: Callable[[RequestHandler, ReceiverCaller, _Asked], Awaitable[Reply]]) -> AnswerQuestion:
        @wraps(answer)
        async def ask(handler: RequestHandler, request: Request, name: str) -> Reply:
            with handler.gate.entered():
                caller = await handler.caller(request, name)
                data = await handler.read(request, min(QUESTION_BYTES_MAX, handler.settings.body_bytes_max))
                asked = await handler.in_thread(lambda: _parsed(data, kind))
                return await answer(handler, caller, asked)

        return ask

    return wrapped


@_question(ClaimedQuestion)
async def claimed(handler: RequestHandler, caller: ReceiverCaller, asked: ClaimedQuestion) -> Reply:
    def ask() -> SourceRecord | None:
        with handler.ledger.read() as connection:
            return senders.find_claim(connection, caller.dataset.id, asked.lake, asked.dataset)

    found = await handler.in_thread(ask)
    if found is None:
        return _answer({"claim": None, "generation": None})
    return _claim_reply(_own(found, caller))


@_question(ClaimQuestion)
async def claim(handler: RequestHandler, caller: ReceiverCaller, asked: ClaimQuestion) -> Reply:
    wanted = SourceRecord(**asked.model_dump(), owner=caller.token.owner)

    def ask() -> SourceRecord | None:
        with handler.ledger.write() as connection:
            return senders.claim(connection, caller.dataset.id, wanted)

    found = await handler.in_thread(ask)
    if found is None:
        raise EarlyReply(answers.not_claimed(None))
    mine = (_own(found, caller).instance, found.table_uuid) == (asked.instance, asked.table_uuid)
    if mine and found.term == asked.term and found.generation < asked.generation:
        raise EarlyReply(answers.not_claimed(found.generation))
    if mine:
        await handler.in_thread(handler.watch.claimed)
    return _claim_reply(found)


def _own(record: SourceRecord, caller: ReceiverCaller) -> SourceRecord:
    if record.owner not in (None, caller.token.owner):
        raise EarlyReply(answers.NOT_OWNER)
    return record


def _claim_reply(record: SourceRecord) -> Reply:
    found = {name: getattr(record, name) for name in ("lake", "instance", "dataset", "table_uuid", "term")}
    return _answer({"claim": found, "generation": record.generation})


@_question(HeldQuestion)
async def held(handler: RequestHandler, caller: ReceiverCaller, asked: HeldQuestion) -> Reply:
    lanes = [(lane.partition, None if lane.after is None else Seq(lane.after)) for lane in asked.lanes]

    def ask() -> list[Any]:
        with handler.ledger.read() as connection:
            _check_owner(connection, caller, asked)
            found = senders.held_bodies(
                connection, caller.dataset.id, asked.lane(""), lanes, bodies_max=HELD_RANGES_AT_ONCE_MAX
            )
        return [
            {"ranges": [[b.rows.lo, b.rows.hi, b.count, b.digest, b.size] for b in lane.bodies], "more": lane.more}
            for lane in found
        ]

    return _answer({"lanes": await handler.in_thread(ask)})


@_question(InspectQuestion)
async def inspect(handler: RequestHandler, caller: ReceiverCaller, asked: InspectQuestion) -> Reply:
    if asked.lo > asked.hi:
        raise EarlyReply(answers.bad_request("lo is above hi"))
    lane = asked.lane(asked.partition)

    def ask() -> Mapping[str, Any]:
        with handler.ledger.read() as connection:
            _check_owner(connection, caller, asked)
        return handler.parts.tables.inspect(caller.dataset, lane, Seq(asked.lo), Seq(asked.hi))

    with handler.gate.inspecting():
        return _answer(dict(await handler.inspect(ask)))


def _check_owner(connection: Connection, caller: ReceiverCaller, asked: _SenderQuestion) -> None:
    """Lanes that nobody has claimed hold nothing, so anybody may ask about them."""
    found = senders.find_claim(connection, caller.dataset.id, asked.lake, asked.dataset)
    if found is not None:
        _own(found, caller)


def _answer(more: dict[str, Any]) -> Reply:
    return Reply(200, Answer.ACCEPTED, None, more)


def _parsed(data: bytes, kind: type[_Asked]) -> _Asked:
    try:
        return kind.model_validate_json(data)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise EarlyReply(answers.bad_request(f"{where}: {first['msg']}" if where else first["msg"])) from e
