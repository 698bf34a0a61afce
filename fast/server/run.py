"""The server as a process: binds the port, runs until a signal, lets running requests finish."""

import socket

import uvicorn

from ft.fast.llm import LLM
from ft.fast.refusal import refuse
from ft.fast.server.app import create_app

GRACE_SECONDS = 30
"""How long a shutdown waits for running requests."""


def serve(
    llm: LLM, served_name: str, host: str = "127.0.0.1", port: int = 1919, api_key: str | None = None
) -> None:
    """Serve until SIGINT or SIGTERM. port 0 takes a free one. Refusal when the address cannot be had."""
    with bind(host, port) as listener:
        app = create_app(llm, served_name, api_key)
        actual = listener.getsockname()[1]
        config = uvicorn.Config(app, host=host, port=actual, timeout_graceful_shutdown=GRACE_SECONDS)
        uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Refusal names the address and the system's reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise refuse(f"--host {host} --port {port}", str(error), "choose another address or port") from error
