"""The pages speak of what is there: links, files, modules, flags, targets and metrics exist, commands parse, and
snippets run. Each rule has a text that breaks it."""

import argparse
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from ft.fast.cli import build_parser
from ft.fast.server.stats import Stats

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("reference", "fast", "kernels", "contracts", "tests", "benchmarks", "docs")
ROUTES = ("v1", "health", "metrics")
"""First parts of the server's paths. No page names a path of one machine."""

SUFFIXES = ("py", "md", "json", "toml", "safetensors", "txt")


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command line in the shell blocks and of each inline `pytest ...` or `ft ...`."""
    lines = [line for block in blocks(text, "sh") for line in re.sub(r"\\\n", " ", block).splitlines()]
    lines += re.findall(r"`((?:pytest|ft|python|make) [^`\n]+)`", text)
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        if words:
            yield [Path(words[0]).name, *words[1:]]


@cache
def file_names() -> frozenset[str]:
    """Names of the files in the repository's own folders, and at its root."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return frozenset(path.name for path in (*inside, *ROOT.glob("*")))


@cache
def options_of_pytest() -> frozenset[str]:
    """Long options of pytest with its plugins, and those that the contracts add."""
    asked = [sys.executable, "-m", "pytest", "--help"]
    shown = subprocess.run(asked, cwd=ROOT / "contracts", capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown)) | _declared(ROOT / "contracts")


@cache
def _declared(folder: Path) -> frozenset[str]:
    """Options that the files of a folder add to a parser."""
    found = (
        re.findall(r'add_?(?:option|argument)\(\s*"(--[a-z-]+)"', path.read_text())
        for path in folder.rglob("*.py")
    )
    return frozenset(flag for flags in found for flag in flags)


@cache
def options_of_ft() -> frozenset[str]:
    parser = build_parser()
    flags = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            flags |= {flag for command in action.choices.values() for flag in command._option_string_actions}
    return frozenset(flags)


def dead_links(text: str) -> list[str]:
    """Relative links of a page in docs/; README's are tried from the root."""
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [link for link in targets if link and "://" not in link]
    return [link for link in local if not any((ROOT / base / link).exists() for base in ("docs", "."))]


def missing_files(text: str) -> list[str]:
    """Paths and bare file names in backticks; <name> stands for any name."""
    found = []
    for quoted in re.findall(r"`([\w./<>-]+)`", text):
        pattern = re.sub(r"<\w+>", "*", quoted).rstrip("/")
        if quoted.startswith("/"):
            found += [] if quoted.split("/")[1] in ROUTES else [quoted]
        elif quoted.split("/")[0] in FOLDERS and "/" in quoted:
            found += [] if any(ROOT.glob(pattern)) else [quoted]
        elif "/" not in quoted and quoted.rpartition(".")[2] in SUFFIXES and "." in quoted:
            found += [] if quoted in file_names() else [quoted]
    return found


def missing_modules(text: str) -> list[str]:
    found = []
    for name in re.findall(r"`(ft\.(?:reference|fast|contracts|kernels)(?:\.\w+)*)`", text):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            found.append(name)
    return found


def unknown_flags(text: str) -> list[str]:
    known = options_of_ft() | _declared(ROOT / "benchmarks") | options_of_pytest()
    shown = text.replace("mypy --strict", "mypy")
    return [flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown) if flag not in known]


def wrong_commands(text: str) -> list[str]:
    """`ft` lines that the command refuses, pytest lines with options it has not, targets that make has not."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    return [shlex.join(words) for words in commands(text) if not _is_right(words, targets)]


def _is_right(words: list[str], targets: set[str]) -> bool:
    match words:
        case ["ft", "serve" | "generate"] | ["ft", *_, "--help"]:
            return True
        case ["ft", *arguments]:
            try:
                build_parser().parse_args(arguments)
            except SystemExit:
                return False
        case ["pytest", *arguments]:
            return options_of_pytest().issuperset(word for word in arguments if word.startswith("--"))
        case ["python", "-m", module, *arguments]:
            path = ROOT / f"{module.replace('.', '/')}.py"
            known = _declared(ROOT / "benchmarks")
            return path.exists() and known.issuperset(word for word in arguments if word.startswith("--"))
        case ["make", *goals]:
            return targets.issuperset(goal for goal in goals if "=" not in goal)
    return True


def unknown_metrics(text: str) -> list[str]:
    page = Stats().page("")[0].decode()
    names = re.findall(r"`(ft_\w+)`", text)
    return [name for name in names if not re.search(rf"^# TYPE {name} ", page, re.MULTILINE)]


Rule = Callable[[str], list[str]]
RULES: tuple[Rule, ...] = (
    dead_links,
    missing_files,
    missing_modules,
    unknown_flags,
    wrong_commands,
    unknown_metrics,
)
BROKEN: dict[str, tuple[Rule, str, str]] = {
    "link": (dead_links, "see [this](nowhere.md#part)", "nowhere.md"),
    "path": (missing_files, "in `fast/nowhere.py`", "fast/nowhere.py"),
    "folder": (missing_files, "in `fast/nowhere/`", "fast/nowhere/"),
    "path of any family": (missing_files, "`fast/families/<name>/cafe.py`", "fast/families/<name>/cafe.py"),
    "file name": (missing_files, "the file `nowhere.py`", "nowhere.py"),
    "machine path": (missing_files, "in `/home/me/ft`", "/home/me/ft"),
    "module": (missing_modules, "import `ft.fast.nowhere`", "ft.fast.nowhere"),
    "flag": (unknown_flags, "use --no-such-flag", "--no-such-flag"),
    "flag of another command": (wrong_commands, "`ft generate x --port 1`", "ft generate x --port 1"),
    "flag of ft": (wrong_commands, "```sh\n.venv/bin/ft serve --fast\n```\n", "ft serve --fast"),
    "continued line": (wrong_commands, "```sh\nft serve \\\n  --fast\n```\n", "ft serve --fast"),
    "option of pytest": (wrong_commands, "`pytest contracts --faults`", "pytest contracts --faults"),
    "module to run": (wrong_commands, "`python -m benchmarks.nothing`", "python -m benchmarks.nothing"),
    "target": (wrong_commands, "`make coffee`", "make coffee"),
    "metric": (unknown_metrics, "`ft_no_such_total`", "ft_no_such_total"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_a_page_names_is_there(page: Path, rule: Rule) -> None:
    assert rule(page.read_text()) == []


@pytest.mark.parametrize("twin", BROKEN)
def test_a_rule_catches_what_is_not_there(twin: str) -> None:
    rule, text, expected = BROKEN[twin]
    assert rule(text) == [expected]


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def run_snippet(source: str, folder: Path) -> None:
    """Run a snippet as a script would be run. Whatever it raises comes out."""
    path = folder / "snippet.py"
    path.write_text(source)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_num_threads(threads)


SNIPPETS = {
    f"{page.name}-{index}": source
    for page in PAGES
    for index, source in enumerate(blocks(page.read_text(), "python"))
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_runs(name: str, tmp_path: Path) -> None:
    run_snippet(SNIPPETS[name], tmp_path)


def test_a_snippet_that_raises_is_caught(tmp_path: Path) -> None:
    (source,) = blocks("Text.\n\n```python\nanswer = 41\nassert answer == 42\n```\n", "python")
    with pytest.raises(AssertionError):
        run_snippet(source, tmp_path)
    (source,) = blocks("```python\nraise SystemExit('survived')\n```\n", "python")
    with pytest.raises(SystemExit):
        run_snippet(source, tmp_path)


def test_no_python_block_is_passed_over() -> None:
    """A block that opens in another way, such as indented, would not be found."""
    marks = sum(len(re.findall(r"```\s*py", page.read_text())) for page in PAGES)
    assert marks == len(SNIPPETS) >= 5
