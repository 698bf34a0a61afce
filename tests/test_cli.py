"""The command line: what it prints, where, and its exit codes. A tiny random checkpoint is written here."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ft.fast.arguments import flags_from, options_from
from ft.fast.cli import build_parser, main
from ft.fast.inputs import Flags
from ft.fast.request import FinishReason, Update
from ft.fast.tally import tally
from ft.fast.validate import Options
from ft.reference.registry import families

FT = str(Path(sys.executable).with_name("ft"))


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """One id a byte letter, space and printable ASCII first."""
    letters = ["Ġ", *(chr(code) for code in range(33, 127)), *(chr(code) for code in range(0xA1, 0xAD))]
    vocab = {letter: index for index, letter in enumerate(letters[:vocabulary])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with an MTP layer and a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    family = families()[0]
    tiny = next(tiny for tiny in family.tiny if tiny.has_mtp)
    family.write_tiny(tiny.name, folder, 0)
    write_tokenizer(folder, tiny.vocabulary)
    return folder


def generate(model: Path, *arguments: str) -> int:
    return main(["generate", "Once upon", "--model", str(model), "--device", "cpu", *arguments])


MTP = ("--speculative-algorithm", "mtp", "--speculative-num-steps", "3")


def test_text_on_stdout_and_one_line_of_statistics_on_stderr(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(model, *MTP, "--max-tokens", "9") == 0
    printed = capsys.readouterr()
    assert len(printed.out) == 10
    (line,) = printed.err.splitlines()
    assert line.startswith("9 tokens in ")
    assert "tokens/s" in line
    assert "tokens a step" in line
    assert line.split("by position ")[1].count("%") == 3


def test_the_text_is_the_same_streamed_drafted_or_neither(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for flags in ((), MTP, ("--stream",), (*MTP, "--stream", "--page-size", "4")):
        assert generate(model, "--max-tokens", "12", "--seed", "7", "--temperature", "1", *flags) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1


def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, *MTP, "--max-tokens", "5", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["finish_reason"] == "length"
    assert report["usage"]["prompt_tokens"] == len("Once upon")
    assert report["usage"]["completion_tokens"] == report["statistics"]["tokens"] == 5
    assert report["statistics"]["steps"] <= 5
    assert len(report["text"]) == 5


def test_stop(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, "--max-tokens", "20") == 0
    text = capsys.readouterr().out.rstrip("\n")
    stop = text[6:8]
    assert generate(model, "--max-tokens", "20", "--stop", stop, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["finish_reason"] == "stop"
    assert report["text"] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--speculative-num-steps", "3"),
            "--speculative-num-steps 3: no tokens are drafted without a proposer",
        ),
        (("--spec-algo", "mtp", "--speculative-num-steps", "16"), "mtp drafts 1 to 15 tokens a step"),
        (("--spec-algo", "eagle"), "choose from: off, mtp"),
        (("--page-size", "5"), "choose from: 1, 4, 16, 64"),
        (("--device", "abacus"), "--device abacus: torch knows no such device"),
        (("--max-tokens", "0"), "max_tokens is 0; it must be at least 1"),
        (("--temperature", "-1"), "temperature is -1.0"),
        (("--temperature", "nan"), "temperature is nan"),
        (("--top-p", "0"), "top_p is 0.0"),
        (("--top-k", "-2"), "top_k is -2"),
        (("--min-p", "2"), "min_p is 2.0"),
        (("--stop", ""), "stop has ''"),
        (("--seed", str(1 << 64)), "seed is"),
        (("--context-length", "9"), "prompt has 9 tokens; it must have fewer than the context of 9 tokens"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(
    model: Path, arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(model, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("ft: ")
    assert expected in line


def test_an_empty_prompt(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "", "--model", str(model)]) == 2
    assert capsys.readouterr().err == "ft: prompt is empty; it needs at least one token\n"


def test_problems_come_one_a_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, "--page-size", "5", "--memory-ratio", "3") == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["--page-size", "--memory-ratio"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["generate"],
        ["generate", "x", "--speculate"],
        ["generate", "x", "--max-tok", "3"],
        ["generate", "x", "--max-tokens", "many"],
        ["generate", "x", "--stream", "--json"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(tmp_path / "none") == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_checkpoint(
    model: Path, tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    whole = (copy / name).read_bytes()
    (copy / name).unlink()
    if damage == "cut":
        (copy / name).write_bytes(whole[: len(whole) // 2])
    assert generate(copy) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ft: --model {copy}: ")
    assert name in line


def test_a_weight_of_the_wrong_shape(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    path = copy / "config.json"
    raw = json.loads(path.read_text())
    raw.get("text_config", raw)["vocab_size"] += 1
    path.write_text(json.dumps(raw))
    assert generate(copy) == 2
    assert "shape" in capsys.readouterr().err


def test_every_flag_of_the_engine_has_an_argument(model: Path) -> None:
    parser = build_parser()
    arguments = parser.parse_args(["serve", "--spec-algo", "mtp", "--spec-draft-model", "d", "--port", "0"])
    assert {item.name for item in fields(Flags)} <= vars(arguments).keys()
    flags = flags_from(arguments)
    assert flags == Flags(speculative_algorithm="mtp", speculative_draft_model_path=Path("d"), port=0)
    assert flags_from(parser.parse_args(["serve"])) == Flags()


def test_sampling_defaults_are_those_of_python() -> None:
    given = options_from(build_parser().parse_args(["generate", "x"]))
    assert Options(**{**given, "stop": ()}) == Options()
    assert given["stop"] == []


def test_tally() -> None:
    updates = [
        Update("a", (1, 2, 3), drafted=3, accepted=2),
        Update("a", (4,), drafted=2, accepted=0),
        Update("a", (), finish=FinishReason.ABORT),
    ]
    counts = tally(updates, 2.0)
    assert (counts.tokens, counts.steps, counts.offered, counts.accepted) == (4, 2, (2, 2, 1), (1, 1, 0))
    assert (
        counts.line()
        == "4 tokens in 2.00 s, 2.0 tokens/s, 2.00 tokens a step, accepted by position 50% 50% 0%"
    )
    assert tally([], 0.0).line() == "0 tokens in 0.00 s, 0.0 tokens/s, 0.00 tokens a step"


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def ft(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [FT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=ONE_THREAD)


def test_the_installed_command(model: Path) -> None:
    done = ft("generate", "abc", "--model", str(model), "--max-tokens", "4", "--device", "cpu", *MTP)
    assert (done.returncode, len(done.stdout)) == (0, 5)
    assert done.stderr.startswith("4 tokens in ")


def test_the_installed_command_refuses_without_a_traceback(tmp_path: Path) -> None:
    done = ft("generate", "abc", "--model", str(tmp_path), "--device", "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ft: --model {tmp_path}: ")
    assert done.stderr.count("\n") == 1


def test_help_names_every_command_and_loads_no_torch() -> None:
    script = (
        "import sys; from ft.fast.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as left: sys.exit(left.code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("serve", "generate"))


def test_a_server_answers_until_it_is_told_to_stop(model: Path) -> None:
    command = [
        FT,
        "serve",
        "--model",
        str(model),
        "--device",
        "cpu",
        "--port",
        "0",
        "--served-model-name",
        "small",
    ]
    with subprocess.Popen([*command, *MTP], stderr=subprocess.PIPE, text=True, env=ONE_THREAD) as running:
        assert running.stderr is not None
        late = threading.Timer(60, running.kill)
        late.start()
        printed = ""
        while "startup complete" not in printed and (line := running.stderr.readline()):
            printed += line
        address = re.search(r"^serving small at (http://127\.0\.0\.1:[0-9]+/v1)$", printed, re.MULTILINE)
        assert address, printed
        assert "mtp, 3 drafts a step" in printed
        wish = {"model": "small", "prompt": "abc", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        reply = httpx.post(f"{address[1]}/completions", json=wish, timeout=30)
        running.send_signal(signal.SIGINT)
        assert "Traceback" not in running.stderr.read()
        late.cancel()
    assert reply.status_code == 200
    assert len(reply.json()["choices"][0]["text"]) == 4
    assert running.returncode == 130


def test_a_port_that_is_taken(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", str(model), "--device", "cpu", "--port", port]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ft: --host 127.0.0.1 --port {port}: ")
    assert "Address already in use" in line


def test_a_host_that_is_none(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["serve", "--model", str(model), "--device", "cpu", "--host", "256.0.0.1", "--port", "0"]) == 2
    )
    assert capsys.readouterr().err.startswith("ft: --host 256.0.0.1 --port 0: ")


def test_a_reader_that_leaves_is_no_fault(model: Path) -> None:
    command = [
        FT,
        "generate",
        "abc",
        "--model",
        str(model),
        "--device",
        "cpu",
        "--max-tokens",
        "2000",
        "--stream",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ONE_THREAD) as running:
        assert running.stdout is not None
        running.stdout.read(3)
        running.stdout.close()
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 0


def test_the_demo_needs_no_model_flag() -> None:
    done = ft("generate", "The ", "--max-tokens", "8", "--device", "cpu", *MTP)
    assert done.returncode == 0
    assert done.stderr.startswith("8 tokens in ")
