"""The routes: completions, chat completions, models, health, metrics."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from ft.fast.llm import LLM
from ft.fast.server import errors, stream
from ft.fast.server.errors import ApiError, json_response
from ft.fast.server.loop import EngineLoop
from ft.fast.server.openai import ChatParameters, CompletionParameters, Parsed, bad_parameter, parse
from ft.fast.server.replies import ChatReply, Reply, TextReply
from ft.fast.server.stats import Stats


@dataclass
class Service:
    """What the routes share."""

    llm: LLM
    name: str
    api_key: str | None
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.loop = EngineLoop(self.llm.engine, self.stats)

    async def check_key(self, request: Request) -> None:
        """ApiError 401 unless the request carries the key."""
        if self.api_key is None:
            return
        expected = f"Bearer {self.api_key}".encode()
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), expected):
            message = "the API key is missing or wrong; send Authorization: Bearer KEY"
            raise ApiError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for a model that is not served; none means the one that is."""
        if name not in (None, self.name):
            message = f"model {name!r} is not served here; {self.name!r} is"
            raise ApiError(HTTPStatus.NOT_FOUND, message, "model", "model_not_found")

    async def answer(self, request: Request, kind: type[Parsed], reply: Reply) -> Response:
        """Serve one request for text, whole or as a stream."""
        parameters = parse(kind, await read_body(request))
        self.check_model(parameters.model)
        try:
            generations = await asyncio.to_thread(parameters.prepare, self.llm, reply.id)
        except ValueError as error:
            raise bad_parameter(error) from error
        reply.choices = parameters.n
        session = self.loop.open(generations)
        session.watch(gone(request))
        try:
            events = session.events()
            first = await anext(events)
            if parameters.stream:
                content = stream.body(session, first, events, reply, parameters.wants_usage)
                return StreamingResponse(content, headers=stream.HEADERS, media_type="text/event-stream")
            async for _ in events:
                pass
        except BaseException:
            session.close()
            raise
        session.close()
        return json_response(reply.whole([generation.completion() for generation in session.generations]))


async def gone(request: Request) -> None:
    """Return when the client has closed the connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request. ApiError 400 for anything else."""
    try:
        content = json.loads(await request.body())
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}", code="invalid_json"
        ) from error
    if not isinstance(content, dict):
        raise ApiError(HTTPStatus.BAD_REQUEST, f"the body is {type(content).__name__}, not an object")
    return content


def create_app(llm: LLM, served_name: str, api_key: str | None = None) -> FastAPI:
    """The server's application. While it runs, its engine thread alone may use `llm`.

    api_key: what clients must send to the routes below /v1, None to let everybody in.
    """
    service = Service(llm, served_name, api_key)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop.start()
        yield
        await asyncio.to_thread(service.loop.stop)

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.state.loop = service.loop
    errors.install(app)
    app.include_router(text_routes(service))
    app.include_router(watch_routes(service))
    return app


def text_routes(service: Service) -> APIRouter:
    """What OpenAI clients call."""
    piece = service.llm.tokenizer.piece
    router = APIRouter(prefix="/v1", dependencies=[Depends(service.check_key)])
    card = {"id": service.name, "object": "model", "created": int(time.time()), "owned_by": "ft"}
    card["max_model_len"] = service.llm.context

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        return await service.answer(request, CompletionParameters, TextReply(service.name, piece))

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await service.answer(request, ChatParameters, ChatReply(service.name, piece))

    @router.get("/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [card]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return json_response(card)

    return router


def watch_routes(service: Service) -> APIRouter:
    """What operators call; no key is needed."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        failure = service.loop.failure
        if failure is None:
            return json_response({"status": "ok"})
        status = "dead" if service.loop.dead else "failing"
        return json_response({"status": status, "error": failure}, HTTPStatus.SERVICE_UNAVAILABLE)

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        page, content_type = service.stats.page(request.headers.get("accept", ""))
        return Response(page, headers={"Content-Type": content_type})

    return router
