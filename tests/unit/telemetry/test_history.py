"""The last hour of metrics."""

from __future__ import annotations

from aenv.telemetry.history import KEPT_SECONDS, MOST_SAMPLES, Histories, Sample


def _sample(time: float) -> Sample:
    return Sample(2, 12.5, 2**40, 2**39, 2**38, 2**63 - 1, 0, time)


def test_samples_come_back_whole_and_oldest_first() -> None:
    histories = Histories()
    for time in (1.5, 2.5, 3.5):
        histories.add("a", _sample(time))
    histories.add("b", _sample(9.0))
    assert histories.between("a", None, None) == [_sample(1.5), _sample(2.5), _sample(3.5)]
    assert histories.between("a", 2, 2) == [_sample(2.5)]
    assert histories.between("a", 2, None) == [_sample(2.5), _sample(3.5)]
    assert histories.between("a", None, 1) == [_sample(1.5)]
    assert histories.latest("a") == _sample(3.5)
    assert histories.latest("c") is None
    histories.drop("a")
    assert histories.between("a", None, None) == []


def test_an_hour_is_kept() -> None:
    histories = Histories()
    histories.add("a", _sample(1.0))
    histories.add("a", _sample(2.0))
    histories.add("b", _sample(1.0))
    histories.prune(KEPT_SECONDS + 1.5)
    assert histories.between("a", None, None) == [_sample(2.0)]
    assert histories.latest("b") is None


def test_there_is_a_bound_however_often_samples_are_taken() -> None:
    histories = Histories()
    for time in range(MOST_SAMPLES + 5):
        histories.add("a", _sample(float(time)))
    assert len(histories.between("a", None, None)) == MOST_SAMPLES
