"""What a look at the server finds at the moment, as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from aenv.sandboxes.models import Census, Limits, PoolCensus

_MIB = 1 << 20


class CensusCollector(Collector):
    """Turns the census that it was given last into metrics."""

    def __init__(self) -> None:
        self.census: Census | None = None

    def collect(self) -> Iterator[Metric]:
        """Called by the library."""
        if (census := self.census) is None:
            return
        sandboxes = GaugeMetricFamily("aenv_sandboxes", "Sandboxes, by state.", labels=["state"])
        for state, count in census.sandboxes.items():
            sandboxes.add_metric([state], count)
        yield sandboxes
        yield from _pools(census.pools)
        memory = GaugeMetricFamily(
            "aenv_vmm_memory_bytes", "Memory that VMMs hold, of their own or shared.", labels=["of", "kind"]
        )
        for of, use in census.memory.items():
            memory.add_metric([of, "private"], use.private)
            memory.add_metric([of, "shared"], use.shared)
        yield memory
        yield GaugeMetricFamily(
            "aenv_starts_waiting", "Starts that wait for their turn.", value=census.waiting
        )
        yield from _limits("admitted", "of all running sandboxes together", census.admitted)
        yield from _limits("allowed", "that all running sandboxes may have together", census.allowed)

    def describe(self) -> Iterable[Metric]:
        """Called by the library at the registration, before there is a census."""
        return ()


def _pools(pools: Mapping[str, PoolCensus]) -> Iterator[Metric]:
    size = GaugeMetricFamily("aenv_pool_size", "Machines kept for a quick start.", labels=["pool"])
    wanted = GaugeMetricFamily("aenv_pool_wanted", "Machines that demand asks for.", labels=["pool"])
    takes = CounterMetricFamily(
        "aenv_pool_takes", "How often a machine was asked for.", labels=["pool", "outcome"]
    )
    given_up = CounterMetricFamily(
        "aenv_pool_given_up", "Machines that ended for want of memory.", labels=["pool"]
    )
    for name, pool in pools.items():
        size.add_metric([name], pool.size)
        wanted.add_metric([name], pool.wanted)
        takes.add_metric([name, "hit"], pool.hits)
        takes.add_metric([name, "miss"], pool.misses)
        given_up.add_metric([name], pool.given_up)
    yield from (size, wanted, takes, given_up)


def _limits(name: str, what: str, limits: Limits) -> Iterator[Metric]:
    yield GaugeMetricFamily(f"aenv_{name}_cpus", f"vCPUs {what}.", value=limits.cpus)
    yield GaugeMetricFamily(
        f"aenv_{name}_memory_bytes", f"Memory of guests {what}.", value=limits.memory_mib * _MIB
    )
