"""The server as a process: binds the port, runs until a signal, then lets running requests finish for a while."""

import asyncio
import signal
import socket
import sys
from types import FrameType

import uvicorn

from ft.fast.llm import LLM
from ft.fast.refusal import refuse
from ft.fast.server.app import create_app
from ft.fast.server.loop import EngineLoop

GRACE_SECONDS = 30
"""How long a shutdown waits for running requests before it ends them."""


class Server(uvicorn.Server):
    """Ends what still runs when the grace is over, or at a second signal, with an error that clients can read."""

    def __init__(self, config: uvicorn.Config, loop: EngineLoop, grace: float = GRACE_SECONDS) -> None:
        super().__init__(config)
        self.loop = loop
        self.grace = grace
        self.interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.interrupted = self.interrupted or sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._drain()
        await asyncio.to_thread(self.loop.stop)
        self.force_exit = False  # their errors are on the way; what hangs after that is uvicorn's to cut
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        if not self.loop.busy:
            return
        wait = f"up to {self.grace:g} s for running requests; Ctrl-C again ends them"
        print(f"ft: shutting down, waiting {wait}", file=sys.stderr, flush=True)
        deadline = asyncio.get_running_loop().time() + self.grace
        while self.loop.busy and not self.force_exit and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)


def serve(
    llm: LLM, served_name: str, host: str = "127.0.0.1", port: int = 1919, api_key: str | None = None
) -> bool:
    """Serve until SIGINT or SIGTERM; whether it was SIGINT. port 0 takes a free one. Refusal when the address cannot
    be had."""
    with bind(host, port) as listener:
        app = create_app(llm, served_name, api_key)
        actual = listener.getsockname()[1]
        config = uvicorn.Config(app, host=host, port=actual, timeout_graceful_shutdown=5)
        server = Server(config, app.state.loop)
        server.run(sockets=[listener])
    return server.interrupted


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Refusal names the address and the system's reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        # asyncio and socket add the address to the system's words; it stands in the subject already.
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise refuse(f"--host {host} --port {port}", reason, "choose another address or port") from error
    except OverflowError as error:
        raise refuse(f"--host {host} --port {port}", str(error), "choose another address or port") from error
