"""The script that puts measured figures into the document."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from aenv.bench.rows import COLUMNS, Report
from tests.server import ROOT


@pytest.fixture
def script() -> ModuleType:
    """`bench/update_docs.py`."""
    spec = importlib.util.spec_from_file_location("update_docs", ROOT / "bench" / "update_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report() -> Report:
    """One row that is well, one that misses its target and is slower than the engine allows, one failed."""
    report = Report(lambda _: None, "qemu")
    report.row("pause", target="≤ 100").add(50.0)
    late = report.row("create_hot", "usable", target="≤ 200")
    late.add(900.0)
    late.reference.append(300.0)
    report.row("kill").n = 1
    for row in report.rows[:2]:
        row.n = 1
    return report


def test_a_block_has_machine_command_figures_and_verdict(script: ModuleType, report: Report) -> None:
    lines = script.block("lifecycle", report).splitlines()
    assert ".venv/bin/aenv bench lifecycle --runs 6" in lines
    assert f"| {' | '.join(COLUMNS)} |" in lines
    assert "| create_hot | usable | 1/1 | 900 | 900 | 900 | ms | 300 | 3 | ≤ 200 | no |" in lines
    assert lines[-1] == (
        "1 of 2 targets are met. Missed: `create_hot` usable. "
        "Above 1.5 times the bare engine: `create_hot` usable. With failures: `kill`."
    )


def test_only_the_block_of_the_area_changes(script: ModuleType) -> None:
    text = "a\n<!-- measured: fork -->\nold\n<!-- end -->\nb\n<!-- measured: density -->\nold\n<!-- end -->\n"
    filled = script.fill(text, "fork", "new \\1")
    assert filled == text.replace("fork -->\nold", "fork -->\nnew \\1")
    with pytest.raises(ValueError, match="no block for lifecycle"):
        script.fill(text, "lifecycle", "new")


def test_the_document_has_a_block_for_every_area(script: ModuleType) -> None:
    for area in script.RUNS:
        assert script.fill(script.DOCUMENT.read_text(), area, "new") != script.DOCUMENT.read_text()


@pytest.mark.parametrize(("load", "told"), [(0.1, False), (64.0, True)])
def test_figures_of_a_busy_machine_say_so(
    script: ModuleType, report: Report, load: float, told: bool
) -> None:
    report.machine.update(load=load, cores=4)
    assert ("Other work went on" in script.block("lifecycle", report)) is told
