"""Devices, mutants and the closing line of the contracts."""

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads it when a kernel is defined.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from ft.contracts.matrix import Cell, cells, devices

CELLS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", action="store_true", help="seed faults in the product; each must be caught")
    parser.addoption("--seeds", type=int, default=3, help="requests of each contract over many seeds")
    parser.addoption("--first-seed", type=int, default=0, help="where they begin, to share them out")
    parser.addoption("--device", default=None, help="run the cells of this device only: cpu or cuda")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cells(proposers, drafts): the cells of the matrix that a contract runs on"
    )
    config.addinivalue_line("markers", "mutant: runs with --mutants only")
    wanted = config.getoption("--device")
    if wanted is not None and wanted not in devices():
        raise pytest.UsageError(f"--device {wanted}: this machine has {', '.join(devices())}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Seeded faults run only when asked for."""
    if not config.getoption("--mutants"):
        left_out = [item for item in items if item.get_closest_marker("mutant")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("mutant")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `cell` runs once for each cell of the matrix that its marker admits."""
    if "cell" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.getoption("--device")
    marker = metafunc.definition.get_closest_marker("cells")
    limits = dict(marker.kwargs) if marker else {}
    chosen = [cell for cell in cells(**limits) if wanted in (None, cell.device)]
    metafunc.parametrize("cell", chosen, ids=[cell.name for cell in chosen])


@pytest.fixture(autouse=True)
def one_thread_each(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny shapes run faster on one thread, and workers do not fight for cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    cell = getattr(item, "callspec", None) and item.callspec.params.get("cell")  # type: ignore[attr-defined]
    if report.when == "call" and isinstance(cell, Cell):
        report.user_properties.append(("cell", "refused" if cell.refusal else "ran"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.setdefault(CELLS, {"ran": 0, "refused": 0})
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name == "cell":
                    counts[value] += 1


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run."""
    counts = config.stash.get(CELLS, {"ran": 0, "refused": 0})
    if any(counts.values()):
        print(f"contracts: {counts['ran']} cells ran, {counts['refused']} were refused")
