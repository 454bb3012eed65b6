"""A server on a disk that becomes full, read-only or damaged: nothing is lost, and it says what is wrong."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox, SandboxException

from tests.server import Server, home, running_server
from tests.small_disk import bound, fill, filled, loop_disk

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(600)]

MIB = 1 << 20
PATIENCE = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose home is a small file system, but for what all servers share."""
    prepared = home("full")
    with ExitStack() as stack:
        folder = stack.enter_context(loop_disk(tmp_path_factory.mktemp("disk") / "home", 900))
        for name in ("images", "bundle"):
            stack.enter_context(bound(prepared / name, folder / name))
        settings = {"reserve_mib": 128, "hot_vms": 1, "bare_vms": 0, "stopped_vms": 1}
        yield stack.enter_context(running_server(folder, **settings))


@pytest.fixture(autouse=True)
def environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_API_KEY"):
        monkeypatch.setenv(name, server.environment[name])


@pytest.fixture
def bystander(server: Server) -> Iterator[Any]:
    """A sandbox beside all that. If its guest wants to write just then, it waits or is paused, too."""
    sandbox = Sandbox.create("base", timeout=3000)
    yield sandbox
    sandbox = Sandbox.connect(sandbox.sandbox_id)
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    sandbox.kill()


def _detail(server: Server, sandbox_id: str) -> Any:
    answer = httpx.get(f"{server.url}/sandboxes/{sandbox_id}", headers={"X-API-Key": server.key}, timeout=60)
    return answer.json()


def _eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it didn't come true in time"
        time.sleep(0.1)


def test_a_guest_that_fills_the_disk(server: Server, bystander: Any) -> None:
    sandbox = Sandbox.create("base", timeout=3000)
    sandbox.files.write("kept", "before")
    reserve = server.home / "reserve"
    _eventually(reserve.exists)
    with filled(server.home, 40 * MIB) as filler:
        each = "head -c 1M /dev/urandom > part-$i; sync"
        program = f"for i in $(seq 100); do {each}; done; sha256sum part-* > sums"
        sandbox.commands.run(program, background=True, timeout=0)
        _eventually(lambda: "pauseReason" in _detail(server, sandbox.sandbox_id))
        assert _detail(server, sandbox.sandbox_id)["state"] == "paused"
        assert _detail(server, sandbox.sandbox_id)["pauseReason"] == "the host's disk was full"
        assert not reserve.exists()

        fill(filler, 0)
        with pytest.raises(SandboxException, match="disk is full") as refusal:
            Sandbox.connect(sandbox.sandbox_id)
        assert "507" in str(refusal.value)
        assert _detail(server, sandbox.sandbox_id)["state"] == "paused"

    again = Sandbox.connect(sandbox.sandbox_id, timeout=3000)
    assert "pauseReason" not in _detail(server, sandbox.sandbox_id)
    _eventually(lambda: again.files.exists("sums"))
    _eventually(lambda: len(again.files.read("sums").splitlines()) == 100)
    assert again.commands.run("sha256sum --quiet -c sums", timeout=120).exit_code == 0
    assert again.files.read("kept") == "before"
    again.kill()
    _eventually(reserve.exists)


def test_a_pause_on_a_full_disk(server: Server, bystander: Any) -> None:
    sandbox = Sandbox.create("base", timeout=3000)
    sandbox.files.write("kept", "before")
    _eventually((server.home / "reserve").exists)
    with filled(server.home, 0) as filler:

        def refused() -> bool:
            fill(filler, 0)  # what was tidied up meanwhile, too
            try:
                Sandbox.delete_snapshot(sandbox.create_snapshot().snapshot_id)
            except SandboxException as error:
                return "507" in str(error)
            return False

        _eventually(refused)
        assert sandbox.files.read("kept") == "before"
        sandbox.pause()
        assert "pauseReason" not in _detail(server, sandbox.sandbox_id)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=3000)
    assert again.files.read("kept") == "before"
    again.kill()


def _own_layers(server: Server, before: set[Path]) -> list[Path]:
    return sorted(set((server.home / "captures").glob("*/*")) - before)


def test_a_damaged_layer_of_each_kind(server: Server, bystander: Any) -> None:
    before = set((server.home / "captures").glob("*/*"))
    sandbox = Sandbox.create("base", timeout=3000)
    sandbox.files.write("kept", "before")
    sandbox.pause()
    other = Sandbox.create("base", timeout=3000)
    other.pause()  # only one stopped VM is kept, so the first sandbox comes from its layers
    layers = [path for path in _own_layers(server, before) if path.exists()]
    kinds = {path.name for path in layers}
    assert {"memory-delta", "device-state"} <= kinds
    assert any(name.endswith(".qcow2") for name in kinds)

    def refused(words: str) -> None:
        with pytest.raises(SandboxException, match=words):
            Sandbox.connect(sandbox.sandbox_id)
        assert _detail(server, sandbox.sandbox_id)["state"] == "paused"

    mine = {path.parent for path in layers if path.name == "memory-delta"}
    for path in (each for each in layers if each.parent in mine):
        content = path.read_bytes()
        os.truncate(path, len(content) // 2)
        if path.parent == _folder_of(server, sandbox.sandbox_id):
            refused(f"layer {path.name} .* is damaged")
            path.unlink()
            refused(f"layer {path.name} .* is missing")
        path.write_bytes(content)
    delta = _folder_of(server, sandbox.sandbox_id) / "memory-delta"
    damaged = bytearray(delta.read_bytes())
    damaged[5000] ^= 1
    delta.write_bytes(damaged)
    refused("checksum")
    damaged[5000] ^= 1
    delta.write_bytes(damaged)
    (base,) = {each for each in before if each.name == "memory-base"}
    away = base.rename(base.with_name("away"))
    refused("layer memory-base .* is missing")
    away.rename(base)
    assert Sandbox.connect(sandbox.sandbox_id).files.read("kept") == "before"
    sandbox.kill()
    other.kill()


def _folder_of(server: Server, sandbox_id: str) -> Path:
    """The folder of the capture that a sandbox is paused to."""
    with closing(sqlite3.connect(server.home / "aenv.db")) as connection:
        query = "SELECT capture_id FROM sandboxes WHERE id = ?"
        (capture_id,) = connection.execute(query, (sandbox_id,)).fetchone()
    return server.home / "captures" / str(capture_id)
