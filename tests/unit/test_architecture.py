"""The documents and the tree agree, and dependencies point downwards."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.server import ROOT

PACKAGE = ROOT / "src" / "aenv"


def _modules() -> dict[str, Path]:
    """Every module of the package and its file."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ["aenv", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names & known.keys()


def test_the_module_table_matches_the_tree() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text().split("## Modules")[1].split("And in `guest/`")[0]
    listed = set(re.findall(r"^\| `aenv\.(\w+)` \|", table, re.MULTILINE))
    tree = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" and not path.stem.startswith("__")
    } | {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert listed == tree


def test_the_table_of_envd_matches_the_tree() -> None:
    guest = (ROOT / "ARCHITECTURE.md").read_text().split("And in `guest/`")[1].split("## Where")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", guest, re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "guest" / "internal").iterdir()}


def test_there_is_no_import_cycle() -> None:
    known = _modules()
    graph = {name: _imports(path, known) - {name} for name, path in known.items()}
    # A package's __init__ is run before its modules, but these say nothing that could close a circle.
    graph = {
        name: {target for target in targets if known[target].stem != "__init__"}
        for name, targets in graph.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_nothing_below_imports_the_edge() -> None:
    known = _modules()
    edge = ("aenv.api", "aenv.proxy", "aenv.cli")
    for name, path in known.items():
        if not name.startswith(edge):
            assert not [target for target in _imports(path, known) if target.startswith(edge)], name


def test_files_are_short() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "guest").rglob("*.go"), *(ROOT / "tests").rglob("*.py")]
    assert not [str(path) for path in files if len(path.read_text().splitlines()) > 400]


def test_generated_documents_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate-docs"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
