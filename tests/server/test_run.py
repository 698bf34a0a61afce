"""`serve`: addresses that cannot be had. That a process answers and ends on a signal is tested with the command."""

import socket

import pytest

from ft.fast.refusal import Refusal
from ft.fast.server.run import serve

from .fake import FakeEngine, make_llm


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refusal, match=f"--host 127.0.0.1 --port {port}: .*in use.*; choose another"):
            serve(make_llm(FakeEngine()), "fake", port=port)


@pytest.mark.parametrize(("host", "port"), [("256.0.0.1", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_does_not_exist_is_named(host: str, port: int) -> None:
    with pytest.raises(Refusal, match=f"--host {host} --port {port}: "):
        serve(make_llm(FakeEngine()), "fake", host, port)
