"""The longest moment in which a program in the guest didn't run, by the guest's own clock.

A loop in the guest sleeps for 2 ms at a time and keeps the largest step of `CLOCK_MONOTONIC`, which neither
`/init` nor anything else sets. Like every clock of the guest it stands still while the vCPUs are stopped. So
it sees the time around that, in which the guest's kernel runs and its processes are frozen; the whole of a
freeze is in the rows `freeze`, by the host's clock.
"""

from __future__ import annotations

import asyncio

from aenv.errors import RuntimeFailure
from aenv.guest.client import EnvdClient

_STOP, _FOUND = "/tmp/aenv-bench-stop", "/tmp/aenv-bench-seen"  # noqa: S108 (in the guest)
_LOOP = f"""
my $time = "\\0" x 16;
sub now {{ syscall(228, 1, $time); my ($s, $ns) = unpack("qq", $time); $s * 1e3 + $ns / 1e6 }}
my ($last, $most) = (now(), 0);
until (-e "{_STOP}") {{
    select(undef, undef, undef, 0.002);
    my $now = now();
    $most = $now - $last if $now - $last > $most;
    $last = $now;
}}
open(my $out, ">", "{_FOUND}.new"); print $out $most; close($out);
rename("{_FOUND}.new", "{_FOUND}");
"""
"""Perl, which every Debian has; 228 is clock_gettime(2) on x86-64, and 1 is CLOCK_MONOTONIC."""

_SETTLE_SECONDS = 0.5
"""Until the loop turns evenly."""


async def watch(guest: EnvdClient) -> None:
    """Let the loop turn in the guest. Raises what `Processes.start` raises."""
    (await guest.processes.start("/usr/bin/perl", ["-e", _LOOP])).close()
    await asyncio.sleep(_SETTLE_SECONDS)


async def longest(guest: EnvdClient) -> float:
    """End the loop; the milliseconds. Raises RuntimeFailure if it didn't turn."""
    script = (
        f"touch {_STOP}; for i in {{1..500}}; do [ -e {_FOUND} ] && break; sleep 0.02; done;"
        f" cat {_FOUND}; rm {_FOUND} {_STOP}"
    )
    result = await guest.processes.run(script)
    try:
        return float(result.stdout)
    except ValueError:
        raise RuntimeFailure(f"the loop in the guest told nothing: {result}") from None
