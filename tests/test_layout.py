"""The rules of the house that a walk over the tree can check, and for each rule trees that break it."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("reference", "fast", "kernels", "contracts")
LARGEST_FILE = 500


@dataclass(frozen=True)
class Room:
    """outside: distributions it may import beside the standard library. inside: patterns of ft modules, each
    with all that lies under it."""

    outside: frozenset[str]
    inside: tuple[str, ...]


ALLOWED = {
    "kernels": Room(frozenset({"torch", "triton"}), ("ft.kernels",)),
    "reference": Room(frozenset({"torch", "numpy", "safetensors", "gguf"}), ("ft.reference",)),
    "fast": Room(
        frozenset(
            {
                "torch",
                "numpy",
                "safetensors",
                "tokenizers",
                "llguidance",
                "jinja2",
                "fastapi",
                "pydantic",
                "starlette",
                "uvicorn",
                "prometheus_client",
                "tqdm",
            }
        ),
        (
            "ft.fast",
            "ft.kernels",
            "ft.reference.protocol",
            "ft.reference.types",
            "ft.reference.registry",
            "ft.reference.weights",
            "ft.reference.families.*.config",
            "ft.reference.families.*.parse",
            "ft.reference.families.*.weights",
            "ft.reference.families.*.load",
        ),
    ),
}
"""Contracts may import everything and so have no row. Nothing imports contracts."""


def python_files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path


def imported(path: Path, package: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and module of each import in a file of `package`. An import from a module gives one entry a name,
    the module and the name under it: either may be what a rule allows."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield node.lineno, (alias.name,)
            case ast.ImportFrom():
                parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*parents, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield node.lineno, (module, f"{module}.{alias.name}")
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")
            ):
                match node.args:
                    case [ast.Constant(value=str(name)), *_]:
                        yield node.lineno, (name,)


def _is_under(module: str, pattern: str) -> bool:
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")


def _is_allowed(names: tuple[str, ...], room: Room) -> bool:
    top = names[0].split(".")[0]
    if top != "ft":
        return top in room.outside or top in sys.stdlib_module_names
    return any(_is_under(name, pattern) for name in names for pattern in room.inside)


def import_rule(root: Path) -> list[str]:
    """Rooms import what their row allows."""
    found = []
    for folder, room in ALLOWED.items():
        for path in python_files(root, (folder,)):
            package = ".".join(("ft", *path.relative_to(root).parent.parts))
            for line, names in imported(path, package):
                if not _is_allowed(names, room):
                    found.append(f"{path.relative_to(root)}:{line}: {folder} may not import {names[-1]}")
    return found


def contracts_rule(root: Path) -> list[str]:
    """Nothing imports contracts."""
    found = []
    for path in python_files(root, ("reference", "fast", "kernels", "tests", "benchmarks")):
        package = ".".join(("ft", *path.relative_to(root).parent.parts))
        for line, names in imported(path, package):
            if any(_is_under(name, "ft.contracts") for name in names):
                found.append(f"{path.relative_to(root)}:{line}: nothing may import ft.contracts")
    return found


def transformers_rule(root: Path) -> list[str]:
    """The product runs without transformers."""
    return [
        f"{path.relative_to(root)}:{line}: the product may not import transformers"
        for path in python_files(root, ("reference", "fast", "kernels"))
        for line, names in imported(path, "ft")
        if _is_under(names[0], "transformers")
    ]


def links_rule(root: Path) -> list[str]:
    """src/ft holds four relative links, and git keeps them as links."""
    found = []
    for room in ROOMS:
        link = root / "src" / "ft" / room
        if not link.is_symlink():
            found.append(f"src/ft/{room}: not a link")
        elif link.readlink() != Path("../..") / room:
            found.append(f"src/ft/{room}: links to {link.readlink()}, not to ../../{room}")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", *(f"src/ft/{room}" for room in ROOMS)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    for entry in listed.stdout.splitlines():
        mode, path = entry.split()[0], entry.split("\t")[1]
        if mode != "120000":
            found.append(f"{path}: mode {mode} in git, not 120000")
    return found


def packages_rule(root: Path) -> list[str]:
    """kernels is no regular package, contracts and every family folder are."""
    found = []
    if (root / "kernels" / "__init__.py").exists():
        found.append("kernels/__init__.py: must not exist")
    if not (root / "contracts" / "__init__.py").exists():
        found.append("contracts/__init__.py: missing")
    for families in (root / "reference" / "families", root / "fast" / "families"):
        for folder in sorted(families.iterdir()) if families.is_dir() else []:
            if folder.is_dir() and folder.name != "__pycache__" and not (folder / "__init__.py").exists():
                found.append(f"{folder.relative_to(root)}/__init__.py: missing, so the family is not found")
    return found


def size_rule(root: Path) -> list[str]:
    """No file passes 500 lines."""
    found = []
    for path in python_files(root, (*ROOMS, "tests", "benchmarks")):
        lines = len(path.read_text().splitlines())
        if lines > LARGEST_FILE:
            found.append(f"{path.relative_to(root)}: {lines} lines, the limit is {LARGEST_FILE}")
    return found


Rule = Callable[[Path], list[str]]
RULES: tuple[Rule, ...] = (
    import_rule,
    contracts_rule,
    transformers_rule,
    links_rule,
    packages_rule,
    size_rule,
)

SOUND = {
    "reference/types.py": "import dataclasses\nfrom torch import Tensor\nfrom ft.reference import protocol",
    "reference/families/a/__init__.py": "from ft.reference.families.a.config import Config",
    "reference/ops/norm.py": "from ..types import Step",
    "fast/engine.py": "from ft.reference import types\nfrom ft.kernels.norm import norm\nfrom ft.fast import cli",
    "fast/families/a/__init__.py": "from ft.reference.families.a.weights import Weights",
    "kernels/norm.py": "import math\nimport torch\nfrom triton import language",
    "contracts/__init__.py": "",
    "contracts/test_norm.py": "import transformers\nfrom ft.reference.ops import norm\nfrom ft.fast import engine",
    "tests/test_units.py": "import transformers\nfrom ft.reference.ops import norm",
}

BROKEN: dict[str, tuple[Rule, dict[str, str], str]] = {
    "kernel imports numpy": (
        import_rule,
        {"kernels/norm.py": "import numpy"},
        "kernels may not import numpy",
    ),
    "kernel imports the engine": (
        import_rule,
        {"kernels/norm.py": "from ft.fast import engine"},
        "kernels may not import ft.fast.engine",
    ),
    "reference imports the engine": (
        import_rule,
        {"reference/loop.py": "def f():\n    from ft.fast.engine import Engine"},
        "reference/loop.py:2: reference may not import ft.fast.engine.Engine",
    ),
    "reference imports a kernel": (
        import_rule,
        {"reference/ops/norm.py": "from ...kernels import norm"},
        "reference may not import ft.kernels.norm",
    ),
    "reference imports a server": (
        import_rule,
        {"reference/loop.py": "import fastapi"},
        "reference may not import fastapi",
    ),
    "engine imports a reference operation": (
        import_rule,
        {"fast/engine.py": "from ft.reference.ops import norm"},
        "fast may not import ft.reference.ops.norm",
    ),
    "engine imports the reference whole": (
        import_rule,
        {"fast/engine.py": "import ft.reference"},
        "fast may not import ft.reference",
    ),
    "engine imports a reference target": (
        import_rule,
        {"fast/families/a/target.py": "import ft.reference.families.a.target as oracle"},
        "fast may not import ft.reference.families.a.target",
    ),
    "engine imports a reference target by name": (
        import_rule,
        {"fast/engine.py": "import importlib\nimportlib.import_module('ft.reference.loop')"},
        "fast/engine.py:2: fast may not import ft.reference.loop",
    ),
    "engine imports a bare folder": (
        import_rule,
        {"fast/engine.py": "from kernels import norm"},
        "fast may not import kernels.norm",
    ),
    "engine imports contracts": (
        contracts_rule,
        {"fast/cli.py": "from ft import contracts"},
        "fast/cli.py:1: nothing may import ft.contracts",
    ),
    "a test imports contracts": (
        contracts_rule,
        {"tests/test_units.py": "from ft.contracts.compare import close"},
        "tests/test_units.py:1: nothing may import ft.contracts",
    ),
    "engine imports transformers": (
        transformers_rule,
        {"fast/text.py": "try:\n    from transformers import AutoTokenizer\nexcept ImportError:\n    pass"},
        "fast/text.py:2: the product may not import transformers",
    ),
    "kernels is a package": (
        packages_rule,
        {"kernels/__init__.py": ""},
        "kernels/__init__.py: must not exist",
    ),
    "a bare family folder": (
        packages_rule,
        {"fast/families/b/target.py": ""},
        "fast/families/b/__init__.py: missing, so the family is not found",
    ),
    "a long file": (
        size_rule,
        {"reference/loop.py": "\n" * (LARGEST_FILE + 1)},
        f"reference/loop.py: {LARGEST_FILE + 1} lines, the limit is {LARGEST_FILE}",
    ),
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A small tree that keeps every rule."""
    write(tmp_path, SOUND)
    (tmp_path / "src" / "ft").mkdir(parents=True)
    for room in ROOMS:
        (tmp_path / "src" / "ft" / room).symlink_to(Path("../..") / room)
    return tmp_path


@pytest.mark.parametrize("rule", RULES)
def test_this_tree_keeps_the_rule(rule: Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_tree_keeps_the_rule(rule: Rule, sound: Path) -> None:
    assert rule(sound) == []


@pytest.mark.parametrize("twin", BROKEN)
def test_a_broken_tree_is_found(twin: str, sound: Path) -> None:
    rule, files, expected = BROKEN[twin]
    write(sound, files)
    (found,) = rule(sound)
    assert found.endswith(expected)


def test_contracts_without_init_are_found(sound: Path) -> None:
    (sound / "contracts" / "__init__.py").unlink()
    assert packages_rule(sound) == ["contracts/__init__.py: missing"]


def test_a_copied_folder_is_found(sound: Path) -> None:
    link = sound / "src" / "ft" / "kernels"
    link.unlink()
    link.mkdir()
    assert links_rule(sound) == ["src/ft/kernels: not a link"]


def test_a_link_elsewhere_is_found(sound: Path) -> None:
    link = sound / "src" / "ft" / "fast"
    link.unlink()
    link.symlink_to(sound / "fast")
    assert links_rule(sound) == [f"src/ft/fast: links to {sound / 'fast'}, not to ../../fast"]


def test_a_link_that_git_keeps_as_a_file_is_found(sound: Path) -> None:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=sound, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", "src/ft")
    assert links_rule(sound) == []
    content = git("hash-object", "-w", "kernels/norm.py")
    git("update-index", "--cacheinfo", f"100644,{content},src/ft/kernels")
    assert links_rule(sound) == ["src/ft/kernels: mode 100644 in git, not 120000"]
