"""Errors in the shape that OpenAI clients read: {"error": {"message", "type", "param", "code"}}."""

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

CLIENT_CLOSED = 499
"""Nobody reads this status: the client is gone."""


class ApiError(Exception):
    """Ends one HTTP request with a status and a message; parameter and code are for programs."""

    def __init__(
        self, status: int, message: str, parameter: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.parameter = parameter
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.parameter, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == HTTPStatus.UNAUTHORIZED else None
        return json_response(self.body(), self.status, headers)


def json_response(
    content: dict[str, Any], status: int = HTTPStatus.OK, headers: dict[str, str] | None = None
) -> Response:
    """JSON in ASCII, so that whatever text it quotes can be sent."""
    return Response(json.dumps(content), status, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Give every error of the app this shape, those of routing and of our own faults included."""

    @app.exception_handler(ApiError)
    async def known(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {request.url.path}"
        reason = HTTPStatus(error.status_code).phrase
        response = ApiError(error.status_code, f"{place}: {reason}", code=_code(reason)).response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed on this request").response()


def _code(reason: str) -> str:
    return reason.lower().replace(" ", "_")
