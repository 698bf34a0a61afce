"""The documentation speaks of what is there: links, files and flags exist. Each rule has a text that breaks it."""

import re
from pathlib import Path

import pytest

from ft.fast.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"--mutants", "--device", "--prompts"}
"""Options of pytest and of the benchmarks."""


def dead_links(text: str, folder: Path) -> list[str]:
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    return [link for link in targets if "://" not in link and not (folder / link).exists()]


def missing_files(text: str) -> list[str]:
    found = re.findall(r"`((?:reference|fast|kernels|contracts|tests|benchmarks|docs)/[\w./-]*)`", text)
    return [path for path in found if not (ROOT / path).exists()]


def unknown_flags(text: str) -> list[str]:
    known = set(ELSEWHERE)
    for action in build_parser()._actions:
        for parser in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
            known |= set(parser._option_string_actions)
    return [flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text) if flag not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    assert dead_links(text, page.parent) == []
    assert missing_files(text) == []
    assert unknown_flags(text.replace("mypy --strict", "mypy")) == []


def test_the_rules_catch_what_is_not_there() -> None:
    assert dead_links("see [this](docs/nowhere.md)", ROOT) == ["docs/nowhere.md"]
    assert missing_files("in `fast/nowhere.py`") == ["fast/nowhere.py"]
    assert unknown_flags("use --no-such-flag") == ["--no-such-flag"]
