"""Measure this machine and put the figures into docs/benchmarks.md.

    .venv/bin/python bench/update_docs.py [AREA...]     lifecycle, fork and density, in less than ten minutes

The machine must do nothing else meanwhile, and no server may use the home folder (AENV_HOME, else
/var/lib/aenv). A block whose area isn't measured stays as it is.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from aenv.bench.pace import Mode, Pace
from aenv.bench.rows import COLUMNS, Report, Row
from aenv.bench.run import run

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
RUNS = {"lifecycle": 6, "fork": 5, "density": 8}
MOST = 1.5
"""What a ratio to the bare engine may be."""


def block(area: str, report: Report) -> str:
    """What the document says of one area."""
    machine = report.result()["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    when = f"Measured on {datetime.now(UTC):%Y-%m-%d}, at a load of {machine['load']} when it began."
    if machine["load"] > machine["cores"] / 2:
        when += " **Other work went on: the times say little, the ratios a bit more.**"
    lines = [
        "```console",
        f".venv/bin/aenv bench {area} --runs {RUNS[area]}",
        "```",
        "",
        f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, {versions}. {when}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
        *(f"| {' | '.join(cells)} |" for cells in report.cells()),
        "",
        verdict(report.rows),
    ]
    return "\n".join(lines)


def verdict(rows: list[Row]) -> str:
    """Which targets are missed, which rows are too far from the bare engine, and what failed."""
    judged = [row for row in rows if row.met() is not None]
    ratios = [(row, row.summary()["ratio"]) for row in rows]
    found = {
        "missed": [row for row in judged if not row.met()],
        f"above {MOST} times the bare engine": [row for row, ratio in ratios if ratio and ratio > MOST],
        "with failures": [row for row in rows if row.ok < row.n],
    }
    met = f"{len(judged) - len(found['missed'])} of {len(judged)} targets are met."
    told = [f"{what.capitalize()}: {', '.join(map(name, some))}." for what, some in found.items() if some]
    return " ".join([met, *told])


def name(row: Row) -> str:
    """A row's name, with what was waited for."""
    return f"`{row.name}` {row.end}" if row.end else f"`{row.name}`"


def fill(text: str, area: str, content: str) -> str:
    """The document with another block. Raises ValueError if it has none for the area."""
    pattern = re.compile(rf"(<!-- measured: {area} -->\n).*?(<!-- end -->)", re.DOTALL)
    if pattern.search(text) is None:
        raise ValueError(f"the document has no block for {area}")
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def main() -> None:
    """Measure the areas named on the command line, or all."""
    home = Path(os.environ.get("AENV_HOME", "/var/lib/aenv"))
    for area in sys.argv[1:] or RUNS:
        print(f"{area} …", file=sys.stderr)
        pace = Pace(Mode.SEQUENTIAL, RUNS[area])
        report = run(area, home, pace, lambda problem: print(problem, file=sys.stderr))
        DOCUMENT.write_text(fill(DOCUMENT.read_text(), area, block(area, report)))


if __name__ == "__main__":
    main()
