"""Random layers on top of each other come to what a model of the specification says."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.images.builder import archive, entry
from tests.images.trees import Tree, unpack

NAMES = st.sampled_from("abc")
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@dataclass
class Node:
    """A file, folder or symlink of the model."""

    kind: str
    """`d`, `-` or `l`."""
    what: str = ""
    below: dict[str, Node] = field(default_factory=dict)

    def told(self, name: str = "") -> dict[str, tuple[str, str]]:
        """All paths with their kinds and contents."""
        found = {name: (self.kind, self.what)} if name else {}
        for child, node in self.below.items():
            found |= node.told(f"{name}/{child}" if name else child)
        return found


@dataclass(frozen=True)
class Member:
    """One entry of a layer."""

    path: str
    kind: str
    """`d`, `-`, `l`, `wh` (a whiteout) or `opq` (an opaque folder)."""

    def archived(self, number: int) -> tuple[tarfile.TarInfo, bytes]:
        parent, _, name = self.path.rpartition("/")
        above = f"{parent}/" if parent else ""
        if self.kind == "wh":
            return entry(f"{above}.wh.{name}")
        if self.kind == "opq":
            return entry(f"{self.path}/.wh..wh..opq")
        if self.kind == "d":
            return entry(self.path, kind=tarfile.DIRTYPE, mode=0o755)
        if self.kind == "l":
            return entry(self.path, kind=tarfile.SYMTYPE, link="/nowhere/at/all")
        return entry(self.path, b"%d" % number)


MEMBERS = st.builds(Member, PATHS, st.sampled_from(["-", "-", "d", "l", "wh", "opq"]))
LAYERS = st.lists(st.lists(MEMBERS, max_size=6, unique_by=lambda each: each.path), min_size=1, max_size=4)


def apply(root: Node, members: list[Member], first: int) -> None:
    """What the specification says, in any order: first what is taken away, then what is put."""
    for member in members:
        *above, name = member.path.split("/")
        folder = _find(root, above)
        if member.kind == "wh" and folder is not None:
            folder.below.pop(name, None)
        elif member.kind == "opq" and (found := _find(root, [*above, name])) is not None:
            found.below.clear()
    for number, member in enumerate(members, first):
        if member.kind in ("wh", "opq"):
            continue
        node = root
        *above, name = member.path.split("/")
        for part in above:
            node = node.below.setdefault(part, Node("d"))
        if member.kind == "d":
            if node.below.get(name, Node("-")).kind != "d":
                node.below[name] = Node("d")
        else:
            what = "/nowhere/at/all" if member.kind == "l" else str(number)
            node.below[name] = Node(member.kind, what)


def _find(root: Node, parts: list[str]) -> Node | None:
    node: Node | None = root
    for part in parts:
        node = None if node is None else node.below.get(part)
    return node if node is not None and node.kind == "d" else None


def sensible(root: Node, members: list[Member]) -> list[Member]:
    """The members without those that contradict each other, or lead through what is a file or a link."""
    kept: list[Member] = []
    for member in members:
        parts = member.path.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        inside = any(each.path in above and each.kind in ("-", "l", "wh") for each in kept)
        covers = member.kind in ("-", "l", "wh") and any(
            each.path.startswith(f"{member.path}/") for each in kept
        )
        node: Node | None = root
        blocked = False
        for part in parts[:-1]:
            node = None if node is None else node.below.get(part)
            blocked = blocked or (node is not None and node.kind != "d")
        if member.kind == "opq":
            target = None if node is None else node.below.get(parts[-1])
            blocked = blocked or (target is not None and target.kind != "d")
        if not (inside or covers or blocked):
            kept.append(member)
    return kept


def contents(tree: Tree, root: Path) -> dict[str, tuple[str, str]]:
    found = {}
    for name, facts in tree.items():
        if name != ".":
            what = facts.get("target", "")
            if facts["kind"] == "-":
                what = (root / name).read_text()
            found[name] = (facts["kind"], what)
    return found


@settings(max_examples=150, deadline=None)
@given(LAYERS)
@example([[Member("a/a/a", "-")], [Member("a/a/a", "wh"), Member("a", "opq")]])
def test_layers_come_to_what_the_specification_says(layers: list[list[Member]]) -> None:
    model = Node("d")
    archives = []
    for layer, members in enumerate(layers):
        kept = sensible(model, members)
        first = layer * 100
        archives.append(archive(each.archived(number) for number, each in enumerate(kept, first)))
        apply(model, kept, first)
    root = Path(tempfile.mkdtemp())
    try:
        assert contents(unpack(root, *archives), root) == model.told()
    finally:
        shutil.rmtree(root)
