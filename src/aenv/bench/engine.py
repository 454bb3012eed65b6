"""The bare engine: does with VMs by hand what the server is asked to do, for its figures to be compared with.

    python -m aenv.bench.engine PLAN.json    does the steps of a `Plan`, prints what they came to as JSON

Networks, and as many VMMs as the server keeps spare, are made ahead of the clock. Steps:

- `restore` loads the capture and runs a first command, `stopped` stops the VM and lets it go on;
- what begins with `pause` or `snapshot` writes a capture, `fork` starts children from one;
- `prepare` runs a command; `idle`, `weigh` and `command` look at the memory before and after a first one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aenv.bench.bare import Capture, Machine, Vm, make_network, ms

FIRST = "echo ready"
SETTLE = 2.0
"""Seconds before memory is weighed, and for which a VM is stopped."""


@dataclass(frozen=True)
class Plan:
    """What to do: `count` VMs side by side do the steps, each step `gap` seconds after the VM before."""

    capture: Capture
    machine: Machine
    steps: list[str]
    count: int = 1
    gap: float = 0.0
    children: int = 0
    ready: int = 0
    """So many of the children's VMMs are spawned ahead."""
    prepare: str = ""


class Engine:
    """Does a plan. Everything it makes ends with `stack`."""

    def __init__(self, plan: Plan, folder: str, stack: ExitStack) -> None:
        self.plan = plan
        self.machine = machine = replace(plan.machine, folder=folder)
        self.threads = stack.enter_context(ThreadPoolExecutor(max(plan.count, plan.children)))
        subprocess.run(
            [
                "qemu-img",
                "create",
                "-q",
                "-f",
                "qcow2",
                f"{machine.folder}/empty.qcow2",
                f"{machine.disk_mib}M",
            ],
            check=True,
        )
        self.stack = stack
        self.networks = [f"bare-{os.getpid()}-{n}" for n in range(plan.count * (1 + plan.children))]
        for name in self.networks:
            make_network(name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        self.vms = [self.spawn() for _ in range(plan.count)]
        self.ready = deque(self.spawn() for _ in range(plan.ready))

    def spawn(self) -> Vm:
        """A VMM without a guest."""
        network = self.networks.pop()
        vm = Vm(self.machine, network, Path(self.machine.folder) / network)
        self.stack.callback(vm.close)
        return vm

    def run(self) -> list[dict[str, Any]]:
        """Every step, in all VMs side by side; what each came to, by VM."""
        found: list[dict[str, Any]] = [{} for _ in self.vms]
        for step in self.plan.steps:
            if step == "stopped":
                for vm in self.vms:
                    vm.call("stop")
                time.sleep(SETTLE)
            results = self.threads.map(lambda index, step=step: self.step(step, index), range(len(self.vms)))
            for each, result in zip(found, results, strict=True):
                each.setdefault(step, []).append(result)
        return found

    def step(self, step: str, index: int) -> Any:
        """One step in one VM: milliseconds by what was waited for, or MiB."""
        vm, capture = self.vms[index], self.plan.capture
        if step == "weigh":
            time.sleep(SETTLE)
            return vm.private_mib()
        if step in ("prepare", "command"):
            return vm.guest.run(self.plan.prepare if step == "prepare" else FIRST)
        time.sleep(index * self.plan.gap)
        if step == "fork":
            return self.fork(vm)
        clock = time.perf_counter()
        if step in ("restore", "idle", "stopped"):
            times = vm.go_on() if step == "stopped" else vm.restore(capture)
            if step != "idle":
                times["usable"] = vm.guest.run(FIRST)
            return {end: ms(clock, when) for end, when in times.items()}
        _, lengths = vm.capture(step, go_on=step.startswith("snapshot"))
        if step.startswith("pause"):
            vm.call("cont")
        return lengths

    def fork(self, parent: Vm) -> dict[str, float]:
        """Children of one VM, all at once: milliseconds until the last of them was there."""
        clock = time.perf_counter()
        capture, lengths = parent.capture("fork", go_on=True)

        def start(_number: int) -> tuple[Vm, dict[str, float]]:
            vm = self.ready.popleft() if self.ready else self.spawn()
            return vm, vm.restore(capture)

        with ThreadPoolExecutor(self.plan.children) as threads:
            started = list(threads.map(start, range(self.plan.children)))
            usable = list(threads.map(lambda child: child[0].guest.run(FIRST), started))
        ends = {end: max(times[end] for _, times in started) for end in ("running", "answering")}
        return {
            **{end: ms(clock, when) for end, when in {**ends, "usable": max(usable)}.items()},
            "frozen": lengths["frozen"],
        }


def main() -> None:
    """Do the plan in the file named on the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    fields = json.loads(Path(sys.argv[1]).read_text())
    capture, machine = Capture(**fields.pop("capture")), Machine(**fields.pop("machine"))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bare-", dir=machine.folder))
        print(json.dumps(Engine(Plan(capture, machine, **fields), folder, stack).run()))  # noqa: T201


if __name__ == "__main__":
    main()
