"""File systems of tests: unpacked in a folder of their own, and told file by file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from aenv.disks.edits import EditRefused
from aenv.images.unpack import apply_layer

Tree = dict[str, dict[str, Any]]
"""What is at each path; the root is `.`. Paths that aren't UTF-8 have surrogates."""


def tree() -> Tree:
    """All that is below the working directory."""
    found: Tree = {}
    links: dict[int, str] = {}
    for path in sorted(_walk(b".")):
        name = os.fsdecode(path.removeprefix(b"./"))
        found[name] = _facts(path)
        if found[name].pop("links") > 1 and not found[name]["kind"].startswith("d"):
            inode = os.lstat(path).st_ino
            found[name]["same"] = links.setdefault(inode, name)
    return found


def tell_tree(say: Callable[[str], None]) -> None:
    """`tree` as an edit that changes nothing: JSON of each path and what is there, a line each."""
    os.chdir("/")
    for item in tree().items():
        say(json.dumps(item))


def told_tree(lines: Iterable[str]) -> Tree:
    """The tree of which `tell_tree` said these lines."""
    return dict(json.loads(line) for line in lines)


def _walk(path: bytes) -> Iterator[bytes]:
    yield path
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in os.listdir(path):  # noqa: PTH208 - names in bytes
            yield from _walk(path + b"/" + name)


def _facts(path: bytes) -> dict[str, Any]:
    found = os.lstat(path)
    kind = stat.filemode(found.st_mode)[0]
    facts: dict[str, Any] = {
        "kind": kind,
        "mode": stat.S_IMODE(found.st_mode),
        "owner": [found.st_uid, found.st_gid],
        "mtime": found.st_mtime_ns,
        "links": found.st_nlink,
        "xattrs": {
            os.fsdecode(name): os.getxattr(path, name, follow_symlinks=False).hex()
            for name in os.listxattr(path, follow_symlinks=False)
        },
    }
    if kind == "-":
        facts["size"] = found.st_size
        with open(path, "rb") as file:  # noqa: PTH123 - a name in bytes
            facts["content"] = hashlib.file_digest(file, "sha256").hexdigest()
    elif kind == "l":
        facts["target"] = os.fsdecode(os.readlink(path))  # noqa: PTH115 - the same
    elif kind in "bc":
        facts["device"] = [os.major(found.st_rdev), os.minor(found.st_rdev)]
    return facts


def in_root(root: Path, work: Callable[[], Any]) -> Any:
    """What `work` returns in a child whose root is `root`; raises EditRefused or OSError as it does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_child(root, work, writer)
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123 - a descriptor
        content = json.loads(answer.read())
    os.waitpid(child, 0)
    if "refused" in content:
        raise EditRefused(content["refused"])
    if "errno" in content:
        raise OSError(content["errno"], os.strerror(content["errno"]))
    assert "bug" not in content, content["bug"]
    return content["result"]


def _be_child(root: Path, work: Callable[[], Any], writer: int) -> NoReturn:
    try:
        os.chroot(root)
        os.chdir("/")
        content: dict[str, Any] = {"result": work()}
    except EditRefused as error:
        content = {"refused": str(error)}
    except OSError as error:
        content = {"errno": error.errno}
    except BaseException as error:  # noqa: BLE001 - it is told to the test
        content = {"bug": repr(error)}
    with open(writer, "wb") as file:
        file.write(json.dumps(content).encode())
    os._exit(0)


def unpack(root: Path, *layers: bytes, compression: str = "none", diff_id: str | None = None) -> Tree:
    """The tree after `layers` were applied to the folder `root`."""

    def work() -> Tree:
        for layer in layers:
            apply_layer(io.BytesIO(layer), compression, diff_id, lambda _line: None)
        return tree()

    result: Tree = in_root(root, work)
    return result


@contextmanager
def working_directory(path: Path) -> Iterator[None]:
    """Work in another folder for the block."""
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)
