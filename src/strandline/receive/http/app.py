"""The receiver as a FastAPI application: paths, their OpenAPI description, and one form for all answers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strandline.core import forward_protocol
from strandline.receive.context import ReceiverContext
from strandline.receive.http import answers, questions
from strandline.receive.http.answers import EarlyReply, Reply
from strandline.receive.http.request_handler import RequestHandler

log = logging.getLogger(__name__)

_ROWS = "/v1/datasets/{dataset}/rows"

_ABOUT = """
Rows in, exactly once. A body of rows is answered 202 only when it is durable: then it will be in the dataset's table,
once, whatever happens afterwards. Anything that was not answered 202 can be sent again, the same body under the same
name; nothing is ever doubled by it.

A body's name is its `Idempotency-Key`, in the scope of the token and the dataset: any text that is the same when the
body is sent again. Every answer is a JSON object with `outcome` and `why`; one with `Retry-After` asks to send the
same request again later.

This is the receiver: its paths and the form of its answers are its own. The API of the lake (`strandline serve`) is
described at its `/api/v1/openapi.json`, and answers errors as problem documents.
"""

_SECURITY: list[dict[str, list[str]]] = [{"token": []}]


def create_app(parts: ReceiverContext) -> FastAPI:
    state: dict[str, RequestHandler] = {}

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        state["handler"] = RequestHandler(parts)
        try:
            yield
        finally:
            state["handler"].close()

    app = FastAPI(
        title="Strandline receiver",
        version=forward_protocol.VERSION,
        description=_ABOUT,
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these pages load scripts from third parties
        redoc_url=None,
    )
    app.router.route_class = _PlainRoute
    app.add_middleware(_ProtocolHeader, retry_after_seconds=parts.config.settings.receive.retry_after_seconds)
    _handle_failures(app)
    _add_rows(app, state)
    _add_questions(app, state)

    @app.get("/v1/health", summary="Whether the receiver answers", tags=["receiver"])
    async def health(_request: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    _describe_token(app)
    return app


def _add_rows(app: FastAPI, state: Mapping[str, RequestHandler]) -> None:
    @app.post(
        _ROWS,
        status_code=202,
        summary="Send rows",
        description=_SEND,
        tags=["rows"],
        responses=_outcomes(),
        openapi_extra={"requestBody": _BODY, "parameters": _PARAMETERS, "security": _SECURITY},
    )
    async def send_rows(request: Request, dataset: str) -> JSONResponse:
        return _response(await state["handler"].handle(request, dataset))


_QUESTIONS = (
    ("claimed", "Which sink feeds this dataset", questions.ClaimedQuestion, questions.claimed),
    ("claim", "Feed this dataset from now on", questions.ClaimQuestion, questions.claim),
    ("held", "Which ranges of a sender are held", questions.HeldQuestion, questions.held),
    ("inspect", "Which rows of a sender are really there", questions.InspectQuestion, questions.inspect),
)


def _add_questions(app: FastAPI, state: Mapping[str, RequestHandler]) -> None:
    for name, summary, kind, ask in _QUESTIONS:
        app.post(f"{_ROWS}/{name}", name=name, **_question(summary, kind))(_endpoint(state, ask))


def _endpoint(
    state: Mapping[str, RequestHandler], ask: questions.AnswerQuestion
) -> Callable[[Request, str], Awaitable[JSONResponse]]:
    async def answer(request: Request, dataset: str) -> JSONResponse:
        return _response(await ask(state["handler"], request, dataset))

    return answer


class _PlainRoute(APIRoute):
    """Calls its endpoint with the request and the parts of the path: there is nothing to validate or to convert, and
    FastAPI's own way would cost each body as much as a tenth of its parsing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            answer: Response = await self.endpoint(request, **request.path_params)
            return answer

        return handle


def _response(reply: Reply) -> JSONResponse:
    return JSONResponse(reply.body(), reply.status, dict(reply.headers))


def _handle_failures(app: FastAPI) -> None:
    @app.exception_handler(EarlyReply)
    async def early_reply(_request: Request, error: EarlyReply) -> JSONResponse:
        return _response(error.reply)

    @app.exception_handler(HTTPException)
    async def no_such_path(_request: Request, error: HTTPException) -> JSONResponse:
        return _response(answers.bad_request("there is nothing at this path and method", status=error.status_code))


class _ProtocolHeader:
    """Sets the protocol header on every answer, the framework's included. Answers unexpected failures."""

    def __init__(self, app: ASGIApp, retry_after_seconds: int) -> None:
        self._app = app
        self._retry_after_seconds = retry_after_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def with_header(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[forward_protocol.RECEIVER] = forward_protocol.VERSION
            await send(message)

        try:
            await self._app(scope, receive, with_header)
        except Exception:
            log.exception("a request failed with an unexpected error")
            if not started:
                failed = answers.busy("the receiver failed; its log says why", self._retry_after_seconds, status=503)
                await _response(failed)(scope, receive, with_header)


_SEND = """
JSON lines (a JSON object per line) or an Arrow IPC stream, as it is, gzipped or as zstd. Columns have the types of the
dataset: dates, times, decimals, uuids and base64 of bytes are text in JSON. A column that is left out is null; an
unknown column, a null in a required one and a value that does not fit are refused with their line, and nothing of the
body is taken.

Senders of Strandline name a body by a range of the sequence of one of their lanes instead of a key.
"""
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        forward_protocol.JSON_LINES: {"schema": {"type": "string", "description": "A JSON object per line."}},
        forward_protocol.ARROW: {
            "schema": {"type": "string", "format": "binary", "description": "Plain types, not compressed."}
        },
    },
}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string", **schema}}


_PARAMETERS = [
    _header(
        forward_protocol.KEY,
        "The name of this body, the same when it is sent again.",
        maxLength=forward_protocol.KEY_CHARS_MAX,
    ),
    _header("Content-Encoding", "How the body is compressed.", enum=list(forward_protocol.ENCODINGS)),
    _header(
        forward_protocol.DIGEST, "RFC 9530; a body that was damaged on the way is distinguished from one that is bad."
    ),
    _header(forward_protocol.LAKE, "From a Strandline sender: its lake."),
    _header(forward_protocol.INSTANCE, "From a Strandline sender: its sink."),
    _header(forward_protocol.GENERATION, "From a Strandline sender: the sink's generation."),
    _header(forward_protocol.TERM, "From a Strandline sender: the term in which its site leads the lake."),
    _header(forward_protocol.DATASET, "From a Strandline sender: its dataset."),
    _header(forward_protocol.PARTITION, "From a Strandline sender: the logical partition."),
    _header(forward_protocol.RANGE, "From a Strandline sender: `lo-hi`, both inclusive."),
]
_OUTCOMES = {
    202: "The rows are durable, or were already (`repeat`).",
    400: "`bad_body` with `line` and `why`, `bad_digest`, or `bad_request`.",
    401: "No token, or one that is not known, was revoked or has expired.",
    403: "The token is not for this dataset, or its role is not `write` or `admin`.",
    404: "There is no such dataset.",
    408: "The body took too long.",
    409: "`conflict` with the ranges that are `held`, `in_flight`, or `term_passed`.",
    413: "Too large, before or after decompression; `limit` in bytes.",
    415: "A type or an encoding that is not known.",
    422: "The key was used for another body; its `digest`.",
    429: "Too busy: send the same request again after `Retry-After` seconds.",
    503: "Ledger or warehouse are away, or this site does not lead its lake, which `why` says: send the same request "
    "again after `Retry-After` seconds, or to the site that leads.",
}


class AnswerBody(BaseModel):
    outcome: forward_protocol.Answer
    why: str | None = None
    rows: int | None = None
    digest: str | None = None
    repeat: bool | None = None
    held: list[tuple[int, int]] | None = None
    line: int | None = None
    limit: int | None = None
    term: int | None = None


def _outcomes(only: tuple[int, ...] | None = None) -> dict[int | str, dict[str, Any]]:
    return {
        status: {"description": text, "model": AnswerBody}
        for status, text in _OUTCOMES.items()
        if only is None or status in only
    }


def _question(summary: str, model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    inner = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, inner)}}
    return {
        "summary": summary,
        "tags": ["senders"],
        "responses": _outcomes((400, 401, 403, 404, 413, 503)),
        "openapi_extra": {"requestBody": {"required": True, "content": content}, "security": _SECURITY},
    }


def _inlined(schema: Any, inner: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(part, inner) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if (ref := schema.get("$ref")) is not None:
        return _inlined(inner[ref.rpartition("/")[2]], inner)
    return {key: _inlined(value, inner) for key, value in schema.items()}


def _describe_token(app: FastAPI) -> None:
    described = app.openapi()
    schemes = described.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["token"] = {"type": "http", "scheme": "bearer", "description": "`strandline token create`"}
