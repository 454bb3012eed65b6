"""A program of an E2B user, run unchanged under several versions of the Python SDK.

Run with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set; exits with 0 if everything behaved.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from e2b import (
    CommandExitException,
    FileType,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxQuery,
    SandboxState,
)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come true in time"
        time.sleep(0.1)


def commands(sandbox: Sandbox) -> None:
    """Output, exit codes, environment, working directory, background and kill."""
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    try:
        sandbox.commands.run("exit 7")
    except CommandExitException as error:
        assert error.exit_code == 7
    else:
        raise AssertionError("a failing command must raise")
    assert sandbox.commands.run("echo $GREETING $MINE", envs={"MINE": "mine"}).stdout == "hello mine\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("whoami").stdout == "user\n"
    assert sandbox.commands.run("whoami", user="root").stdout == "root\n"
    assert "not found" in expect_failure(sandbox, "no-such-program").stderr

    lines: list[str] = []
    sandbox.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=lines.append)
    assert "".join(lines).split() == ["1", "2", "3"]

    handle = sandbox.commands.run("sleep 300", background=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.kill(handle.pid)
    assert not sandbox.commands.kill(999_999)
    eventually(lambda: handle.pid not in [process.pid for process in sandbox.commands.list()])

    reader = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    sandbox.commands.send_stdin(reader.pid, "input\n")
    assert reader.wait().stdout == "got input\n"


def expect_failure(sandbox: Sandbox, command: str) -> CommandExitException:
    """The error of a command that must fail."""
    try:
        sandbox.commands.run(command)
    except CommandExitException as error:
        return error
    raise AssertionError(f"{command} should have failed")


def files(sandbox: Sandbox) -> None:
    """Read, write, list, move, remove and watch."""
    fs = sandbox.files
    fs.make_dir("work")
    watch = fs.watch_dir("work")
    fs.write("work/text", "täxt")
    fs.write("work/bytes", bytes(range(256)))
    fs.write("work/empty", "")
    assert fs.read("work/text") == "täxt"
    assert bytes(fs.read("work/bytes", format="bytes")) == bytes(range(256))
    assert fs.read("work/empty") == ""
    entries = {entry.name: entry for entry in fs.list("work")}
    assert set(entries) == {"text", "bytes", "empty"}
    assert entries["bytes"].type is FileType.FILE
    assert entries["bytes"].path == "/home/user/work/bytes"
    fs.rename("work/text", "work/moved")
    assert fs.exists("work/moved")
    assert not fs.exists("work/text")
    fs.remove("work/moved")
    assert not fs.exists("work/moved")
    try:
        fs.read("no/such/file")
    except NotFoundException:
        pass
    else:
        raise AssertionError("a missing file must raise")
    seen: list[str] = []

    def all_seen() -> bool:
        seen.extend(event.name for event in watch.get_new_events())
        return {"text", "bytes", "empty", "moved"} <= set(seen)

    eventually(all_seen)
    watch.stop()


def terminal(sandbox: Sandbox) -> None:
    """A PTY of a given size, with a shell in it."""
    output = bytearray()
    pty = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit\n")
    for _, _, data in pty:
        output += data or b""
    assert b"24 80" in output, bytes(output)


VARIABLES = """
import os, socket, threading
kept = 0
server = socket.create_server(("127.0.0.1", 9999))
while True:
    peer, _ = server.accept()
    kept += 1
    peer.sendall(f"{os.getpid()} {kept}".encode())
    peer.close()
"""

ASK = "exec 3<>/dev/tcp/127.0.0.1/9999; cat <&3"


def life(sandbox: Sandbox) -> None:
    """Pause, connect, snapshot, fork: memory and files go along, and each copy is its own."""
    sandbox.files.write("keeper.py", VARIABLES)
    sandbox.files.write("file", "before the pause")
    sandbox.commands.run("python3 keeper.py", background=True, timeout=0)

    def ask(who: Sandbox) -> tuple[str, int]:
        pid, kept = who.commands.run(ASK).stdout.split()
        return pid, int(kept)

    sandbox.commands.run(f"until bash -c '{ASK}' >/dev/null 2>&1; do sleep 0.1; done", timeout=60)
    pid, kept = ask(sandbox)
    sandbox.beta_pause() if not hasattr(sandbox, "pause") else sandbox.pause()
    assert not sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.is_running()
    assert ask(again) == (pid, kept + 1)
    assert again.files.read("file") == "before the pause"

    snapshot = again.create_snapshot()
    copy = Sandbox.create(snapshot.snapshot_id, timeout=120)
    assert ask(copy) == (pid, kept + 2)
    copy.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id)

    children = [child for child in again.fork(count=4) if isinstance(child, Sandbox)]
    assert len({child.sandbox_id for child in children}) == 4
    for number, child in enumerate(children):
        for extra in range(number + 1):
            assert ask(child) == (pid, kept + 2 + extra)
        child.files.write("mine", str(number))
    assert not again.files.exists("mine")
    for number, child in enumerate(children):
        assert child.files.read("mine") == str(number)
        assert child.kill()
    assert ask(again) == (pid, kept + 2)


def records(sandbox: Sandbox) -> None:
    """Info, list, timeouts and errors."""
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.metadata == {"purpose": "a b&c=d"}
    query = SandboxQuery(metadata={"purpose": "a b&c=d"}, state=[SandboxState.RUNNING])
    listed = [item.sandbox_id for item in Sandbox.list(query=query).next_items()]
    assert listed == [sandbox.sandbox_id], listed
    sandbox.set_timeout(1000)
    left = (sandbox.get_info().end_at.timestamp()) - time.time()
    assert 900 < left <= 1001, left
    impossible: Callable[[], object]
    for impossible in (
        lambda: Sandbox.connect("inosuchsandbox0000000"),
        lambda: Sandbox.create("no-such-template"),
    ):
        try:
            impossible()
        except Exception as error:  # noqa: BLE001 (which class it is differs between versions)
            assert "not found" in str(error), error
        else:
            raise AssertionError("an unknown name must raise")


def main() -> None:
    """Everything, in one sandbox."""
    sandbox = Sandbox.create("base", timeout=300, metadata={"purpose": "a b&c=d"}, envs={"GREETING": "hello"})
    for part in (commands, files, terminal, records, life):
        started = time.monotonic()
        part(sandbox)
        print(f"{part.__name__}: {time.monotonic() - started:.1f} s", flush=True)
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()


if __name__ == "__main__":
    main()
    # All has been proved. Threads of the older SDK's HTTP library (pyqwest 0.10) now and then crash an
    # interpreter that shuts down ("PyGILState_Release: thread state must be current"), so it doesn't.
    sys.stdout.flush()
    os._exit(0)
