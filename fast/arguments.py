"""The command line as argparse sees it. Choices are checked by the plan, which knows the way out."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from ft.fast import capabilities, demo
from ft.fast.inputs import Flags


def _names(table: dict[str, Any]) -> str:
    return ", ".join(table)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that decide the plan. A flag left out keeps the default of `Flags`."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", type=Path, metavar="FOLDER", help=f"checkpoint folder; left out: {demo.NAME}"
    )
    model.add_argument("--device", help="cpu, cuda or cuda:N; left out: cuda where there is a GPU")
    model.add_argument("--dtype", help=f"{_names(capabilities.DTYPE_BYTES)}; left out: by device")
    model.add_argument(
        "--context-length", type=int, metavar="N", help="tokens a request; at most the model's"
    )
    model.add_argument("--dummy-weight", action="store_true", help="random weights of the config's shapes")

    speculation = parser.add_argument_group("speculation (changes the speed, never the text)")
    speculation.add_argument(
        "--speculative-algorithm",
        "--spec-algo",
        metavar="NAME",
        help=f"{_names(capabilities.PROPOSERS)} (off)",
    )
    speculation.add_argument(
        "--speculative-draft-model-path",
        "--spec-draft-model",
        type=Path,
        metavar="FOLDER",
        help="checkpoint of a draft model",
    )
    speculation.add_argument(
        "--speculative-num-steps",
        type=int,
        metavar="K",
        help="tokens drafted a step; left out: the proposer's",
    )
    speculation.add_argument("--speculative-token-map", type=Path, metavar="FILE", help="not supported yet")

    engine = parser.add_argument_group("engine")
    engine.add_argument("--cache-type", metavar="NAME", help=_names(capabilities.CACHES))
    engine.add_argument("--attention-backend", metavar="NAME", help=_names(capabilities.BACKENDS))
    engine.add_argument("--max-running-requests", type=int, metavar="N", help="requests at once (16)")
    engine.add_argument("--max-prefill-length", type=int, metavar="N", help="prompt tokens a step (2048)")
    engine.add_argument("--page-size", type=int, metavar="N", help="tokens a page (16)")
    engine.add_argument(
        "--num-tokens", type=int, metavar="N", help="tokens in the pools; left out: what fits"
    )
    engine.add_argument(
        "--memory-ratio", type=float, metavar="X", help="part of the free memory to take (0.9)"
    )


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of `ft serve` only."""
    server = parser.add_argument_group("server")
    server.add_argument("--host", help="address to listen on (127.0.0.1)")
    server.add_argument("--port", type=int, help="port to listen on, 0 for any free one (1919)")
    server.add_argument(
        "--served-model-name", metavar="NAME", help="name for clients; left out: the folder's"
    )
    server.add_argument("--api-key", metavar="KEY", help="bearer token that clients must send")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of `ft generate` only."""
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens to generate (128)")
    sampling.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (0)")
    sampling.add_argument("--top-k", type=int, default=0, metavar="N", help="0 switches it off (0)")
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="X", help="1 switches it off (1)")
    sampling.add_argument("--min-p", type=float, default=0.0, metavar="X", help="0 switches it off (0)")
    sampling.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    sampling.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end here; may be repeated"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--stream", action="store_true", help="print the text as it comes")
    output.add_argument("--json", action="store_true", help="print one JSON object: text, usage, statistics")


def flags_from(arguments: argparse.Namespace) -> Flags:
    """The given flags; those left out keep their defaults."""
    given = vars(arguments)
    names = (item.name for item in fields(Flags))
    return Flags(**{name: given[name] for name in names if given.get(name) is not None})


def options_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling flags as keyword arguments of `LLM.generate`."""
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop")
    return {name: getattr(arguments, name) for name in names}
