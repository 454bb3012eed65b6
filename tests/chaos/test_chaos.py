"""Five minutes of mixed load while the server and VMMs are killed at random: nothing is lost, nothing leaks.

`AENV_CHAOS_SECONDS` makes it shorter or longer; `AENV_CHAOS_SEED` repeats the choices of a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from aenv.guest.client import new_session
from tests.chaos.client import Client
from tests.chaos.victim import Victim, kill_until
from tests.server import home

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.timeout(3000)]

SECONDS = float(os.environ.get("AENV_CHAOS_SECONDS", "300"))
SEED = int(os.environ.get("AENV_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
CLIENTS = 4
PAUSE = 5.0
"""Seconds from one kill to the next, on average."""


async def test_nothing_is_lost_and_nothing_leaks() -> None:
    sys.stderr.write(f"\nAENV_CHAOS_SEED={SEED} AENV_CHAOS_SECONDS={SECONDS:g}\n")
    victim = Victim(await asyncio.to_thread(home, "chaos"))
    await victim.start()
    try:
        done = await _load(victim)
    finally:
        await victim.stop()
    sys.stderr.write(f"{victim.deaths} deaths of the server, {len(victim.killed)} of VMMs; {dict(done)}\n")
    _check_nothing_is_left(victim)
    assert victim.deaths
    assert victim.killed


async def _load(victim: Victim) -> Counter[str]:
    """Work, kill, then check; what was done how often."""
    chance = random.Random(SEED)  # noqa: S311 -- repeatable, not secret
    done: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(victim.client())
        session = await stack.enter_async_context(new_session())
        clients = [
            Client(f"client-{number}", victim, api, session, random.Random(chance.random()))  # noqa: S311 -- the same
            for number in range(CLIENTS)
        ]
        end_at = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(end_at))
            group.create_task(kill_until(end_at, victim, random.Random(SEED + 1), PAUSE))  # noqa: S311 -- the same
        for client in clients:
            await client.check_all()
            done += client.done
        # What is left was made by requests whose answer got lost.
        for sandbox in await api.sandboxes(metadata={}):
            await api.kill(sandbox.sandbox_id)
        for snapshot in await api.snapshots(None):
            await api.delete_template(snapshot.snapshot_id)
        await _settle(victim)
    return done


async def _settle(victim: Victim) -> None:
    """Every VMM has its folder and every folder its VMM, and one capture is left: the template's."""
    end_at = time.monotonic() + 60
    while True:
        folders = {path.name for path in (victim.home / "workspace").iterdir()}
        captures = [path.name for path in (victim.home / "captures").iterdir()]
        vmms = victim.server.vmms()
        paired = len(folders) == len(vmms) and all(any(name in vmm for name in folders) for vmm in vmms)
        if paired and len(captures) == 1:
            return
        assert time.monotonic() < end_at, f"{captures} {folders} {vmms}"
        await asyncio.sleep(0.2)


def _check_nothing_is_left(victim: Victim) -> None:
    """A stopped server has no process, namespace, link, mount or work folder."""
    server = victim.server
    assert not server.vmms()
    assert not server.namespaces()
    assert not server.links()
    assert not server.mounts()
    assert not list((victim.home / "workspace").iterdir())
