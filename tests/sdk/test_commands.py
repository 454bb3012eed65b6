"""Commands, through the Python SDK."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)

from tests.sdk.client import Client, eventually
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(180)]


def _resident(pid: int) -> int:
    """Memory of a process on this machine, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def _agent_memory(sandbox: Any) -> int:
    """Memory of envd, in bytes."""
    return 1024 * int(sandbox.commands.run("grep VmRSS /proc/1/status", user="root").stdout.split()[1])


def test_output_exit_code_and_surroundings(sandbox: Any) -> None:
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo half; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "half\n")
    assert sandbox.commands.run("echo $GREETING $MINE", envs={"MINE": "m e"}).stdout == "hello m e\n"
    assert sandbox.commands.run("echo $GREETING", envs={"GREETING": "mine"}).stdout == "mine\n"
    shown = sandbox.commands.run("echo $HOME $USER $LOGNAME $PWD $E2B_SANDBOX $E2B_SANDBOX_ID").stdout.split()
    assert shown == ["/home/user", "user", "user", "/home/user", "true", sandbox.sandbox_id]
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("id -un; pwd", user="root").stdout == "root\n/root\n"
    assert sandbox.commands.run("true").stdout == ""


def test_what_cant_start_is_refused(sandbox: Any) -> None:
    with pytest.raises(InvalidArgumentException, match="cwd '/no/such' does not exist"):
        sandbox.commands.run("true", cwd="/no/such")
    with pytest.raises(AuthenticationException, match="invalid username"):
        sandbox.commands.run("true", user="nobody-knows-him")
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(999_999, "x")
    assert not sandbox.commands.kill(999_999)


def test_much_output_arrives_whole(sandbox: Any) -> None:
    program = "import sys; [print(f'{n:09d}') for n in range(400_000)]; sys.stderr.write('é' * 300_001)"
    result = sandbox.commands.run(f'python3 -c "{program}"')
    expected = "".join(f"{number:09d}\n" for number in range(400_000))
    assert hashlib.sha256(result.stdout.encode()).digest() == hashlib.sha256(expected.encode()).digest()
    assert result.stderr == "é" * 300_001


def test_output_comes_while_the_command_runs(sandbox: Any) -> None:
    arrived: list[float] = []
    sandbox.commands.run("echo 1; sleep 1; echo 2", on_stdout=lambda _: arrived.append(time.monotonic()))
    assert arrived[-1] - arrived[0] > 0.7


def test_stdin(client: Client, sandbox: Any) -> None:
    reader = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(reader.pid, "täxt\n")
    sandbox.commands.send_stdin(reader.pid, b"bytes\n")
    sandbox.commands.close_stdin(reader.pid)
    assert reader.wait().stdout == "täxt\nbytes\nend\n"

    counter = sandbox.commands.run("wc -c", background=True, stdin=True)
    client.stream_input(sandbox.commands, counter.pid, ["a", b"bc", "d" * 500_000])
    sandbox.commands.close_stdin(counter.pid)
    assert counter.wait().stdout == "500003\n"

    assert sandbox.commands.run("cat; echo end", stdin=False).stdout == "end\n"
    deaf = sandbox.commands.run("sleep 60", background=True, stdin=False)
    with pytest.raises(SandboxException, match="without stdin"):
        sandbox.commands.send_stdin(deaf.pid, "x")
    deaf.kill()
    with pytest.raises(NotFoundException):
        client.stream_input(sandbox.commands, 999_999, ["x"])


def test_list_and_kill(sandbox: Any) -> None:
    handle = sandbox.commands.run("sleep 300", background=True, envs={"A": "b"}, cwd="/tmp")
    [info] = [process for process in sandbox.commands.list() if process.pid == handle.pid]
    assert (info.cmd, info.args, info.envs, info.cwd) == (
        "/bin/bash",
        ["-l", "-c", "sleep 300"],
        {"A": "b"},
        "/tmp",
    )
    assert sandbox.commands.kill(handle.pid)
    with pytest.raises(CommandExitException) as killed:
        handle.wait()
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    assert handle.pid not in [process.pid for process in sandbox.commands.list()]


def test_a_process_goes_on_without_its_client(sandbox: Any) -> None:
    handle = sandbox.commands.run(
        "until [ -e go ]; do sleep 0.1; done; echo later; exit 3", background=True, timeout=0
    )
    handle.disconnect()
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    first = sandbox.commands.connect(handle.pid)
    second = sandbox.commands.connect(handle.pid)
    sandbox.files.write("go", "")
    for follower in (first, second):
        with pytest.raises(CommandExitException) as ended:
            follower.wait()
        assert (ended.value.exit_code, ended.value.stdout) == (3, "later\n")
    with pytest.raises(CommandExitException) as late:
        sandbox.commands.connect(handle.pid).wait()
    assert late.value.exit_code == 3


def test_the_whole_group_dies_at_the_timeout(sandbox: Any) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 4711 & (sleep 4711; true) & sleep 4711", timeout=1)
    assert time.monotonic() - started < 10
    eventually(lambda: sandbox.commands.run("pgrep -fc '^sleep 4711' || true").stdout == "0\n", 10)
    assert sandbox.commands.run("sleep 0.1; echo fine", timeout=0).stdout == "fine\n"


def test_a_slow_reader_costs_no_memory(server: Server, client: Client, sandbox: Any) -> None:
    """400 MB of output that nobody reads wait in the process, not in envd nor in the server."""
    agent, host = _agent_memory(sandbox), _resident(server.pid)
    handle = client.run_unread(sandbox, "head -c 400000000 /dev/zero | tr '\\0' x")
    time.sleep(4)  # as long as it takes to fill whatever would be filled
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    assert _agent_memory(sandbox) - agent < 16 << 20
    assert _resident(server.pid) - host < 64 << 20
    assert sandbox.commands.kill(handle.pid)
    handle.disconnect()


def test_a_stream_that_breaks_is_no_success(client: Client) -> None:
    doomed = client.create()
    handle = doomed.commands.run("sleep 600", background=True, timeout=0)
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            handle.wait()
        except BaseException as error:  # noqa: BLE001 (whatever it is, it must be an error)
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert doomed.kill()
    waiting.join(30)
    assert [type(error) for error in outcome] != []
    assert isinstance(outcome[0], TimeoutException), outcome
    with pytest.raises(TimeoutException):
        doomed.commands.run("true")
