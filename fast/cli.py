"""The command `ft`. Exit codes: 0 done, 1 failed, 2 what the caller can put right, 130 interrupted."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from ft.fast.arguments import (
    add_engine_flags,
    add_sampling_flags,
    add_server_flags,
    flags_from,
    options_from,
)
from ft.fast.inputs import Flags
from ft.fast.plan import Plan, render
from ft.fast.refusal import Refusal

if TYPE_CHECKING:
    from ft.fast.llm import LLM

FAILED = 1
REFUSED = 2
INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """Every command and flag."""
    parser = argparse.ArgumentParser(
        "ft",
        description="Serve language models with speculative decoding that changes nothing but the speed.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ft {version('ft-spec')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="an OpenAI-compatible HTTP server", allow_abbrev=False)
    add_engine_flags(serve)
    add_server_flags(serve)
    serve.set_defaults(run=run_serve)
    generate = commands.add_parser(
        "generate", help="continue one prompt and print the text", allow_abbrev=False
    )
    generate.add_argument("prompt", help="the text to continue, taken as it is")
    add_sampling_flags(generate)
    add_engine_flags(generate)
    generate.set_defaults(run=run_generate)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what argparse refuses leaves as SystemExit 2."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except Refusal as refusal:
        return complain(refusal.problems)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, which is no fault; what is still buffered must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def complain(problems: Iterable[object], code: int = REFUSED) -> int:
    """Print the problems, a line each; returns the exit code."""
    for problem in problems:
        print(f"ft: {problem}", file=sys.stderr)
    return code


def load(flags: Flags, plan: Plan) -> "LLM":
    """The planned engine and its tokenizer. Refusal names the file or tensor that cannot be used."""
    from tqdm import tqdm

    from ft.fast.build import build
    from ft.fast.facts import unusable
    from ft.fast.llm import LLM
    from ft.fast.text.tokenizer import Tokenizer, TokenizerError
    from ft.reference.weights.safetensors import CheckpointError

    with tqdm(
        total=2, desc="loading tokenizer", bar_format="{desc} [{elapsed}]", leave=False, disable=None
    ) as bar:
        try:
            tokenizer = Tokenizer.load(flags.folder)
            bar.update()
            bar.set_description(f"loading {plan.price.weights >> 20} MiB of weights")
            engine = build(plan)
        except (CheckpointError, TokenizerError) as error:
            raise unusable(flags.folder, error) from error
    return LLM.from_engine(engine, tokenizer, plan.context, engine.runtime.vocabulary)


def run_generate(arguments: argparse.Namespace) -> int:
    """`ft generate`: the text on stdout, one line of statistics on stderr."""
    from ft.fast.facts import make_plan
    from ft.fast.generation import usage
    from ft.fast.tally import tally

    flags = flags_from(arguments)
    llm = load(flags, make_plan(flags))
    started = time.perf_counter()
    try:
        deltas = llm.stream(arguments.prompt, **options_from(arguments))
    except ValueError as error:
        return complain([error])
    text, updates = "", []
    for delta in deltas:
        text += delta.text
        updates.append(delta.update)
        if arguments.stream:
            print(delta.text, end="", flush=True)
    counts = tally(updates, time.perf_counter() - started)
    last = updates[-1]
    if last.error is not None:
        return complain([last.error], FAILED)
    if arguments.json:
        prompt_tokens = len(llm.tokenizer.encode(arguments.prompt))
        report = {
            "text": text,
            "finish_reason": last.finish,
            "usage": asdict(usage(prompt_tokens, updates)),
            "statistics": counts.as_dict(),
        }
        print(json.dumps(report, ensure_ascii=False))
    else:
        print("" if arguments.stream else text)
    print(counts.line(), file=sys.stderr)
    return 0


def run_serve(arguments: argparse.Namespace) -> int:
    """`ft serve`: the plan on stderr, then requests until a signal ends it."""
    from ft.fast.facts import make_plan
    from ft.fast.server.run import bind, serve

    flags = flags_from(arguments)
    plan = make_plan(flags)
    with bind(flags.host, flags.port) as listener:  # refused before weights are read; a port 0 is settled
        port = listener.getsockname()[1]
    print(render(plan), file=sys.stderr)
    llm = load(flags, plan)
    host = f"[{flags.host}]" if ":" in flags.host else flags.host
    print(f"serving {flags.name} at http://{host}:{port}/v1", file=sys.stderr, flush=True)
    interrupted = serve(llm, flags.name, flags.host, port, flags.api_key)
    return INTERRUPTED if interrupted else 0
