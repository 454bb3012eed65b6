"""Logs on disk: bounded, whole, and they remember how far a guest's journal was collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.telemetry.logs import MOST_BYTES, LogEntry, LogFile, Position


def _entry(message: str, time: float = 1.0, **more: object) -> LogEntry:
    return LogEntry(time, "info", "test", message, **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sandbox.jsonl"


def test_entries_come_back_in_the_order_of_their_times(path: Path) -> None:
    log = LogFile(path)
    log.append([_entry("second", 2.0, fields={"ä": "\n"}), _entry("first", 1.0)])
    log.append([_entry("third", 2.0)])
    assert [entry.message for entry in log.read()] == ["first", "second", "third"]
    assert log.read()[1].fields == {"ä": "\n"}
    assert LogFile(path).read() == log.read()


def test_there_may_be_no_file_yet(path: Path) -> None:
    log = LogFile(path)
    assert log.read() == []
    assert log.position() == Position()
    log.append([])
    assert not path.exists()


def test_a_new_process_knows_where_collecting_goes_on(path: Path) -> None:
    LogFile(path).append([_entry("one", journal="boot", sequence=7), _entry("an event of the server")])
    log = LogFile(path)
    assert log.position() == Position("boot", 7)
    log.append([_entry("two", journal="another boot", sequence=1)])
    assert log.position() == LogFile(path).position() == Position("another boot", 1)


def test_the_oldest_give_way(path: Path) -> None:
    log = LogFile(path)
    for number in range(300):
        log.append([_entry(f"{number} {'x' * 4000}", journal="boot", sequence=number + 1)])
        assert path.stat().st_size <= MOST_BYTES
    kept = log.read()
    numbers = [int(entry.message.split()[0]) for entry in kept]
    assert numbers == list(range(numbers[0], 300))
    assert len(kept) > 180
    assert log.position() == Position("boot", 300)
    assert list(path.parent.iterdir()) == [path]


def test_more_than_fits_at_once_is_cut_too(path: Path) -> None:
    LogFile(path).append([_entry(f"{number} {'x' * 4000}") for number in range(600)])
    assert path.stat().st_size <= MOST_BYTES
    assert LogFile(path).read()[-1].message.startswith("599 ")


def test_an_entry_can_not_fill_the_file(path: Path) -> None:
    LogFile(path).append([_entry("long", fields={str(number): "\0" * 4000 for number in range(16)})])
    assert path.stat().st_size < 1000
    assert LogFile(path).read()[0].message == "long"


def test_a_line_cut_off_by_a_crash_costs_only_itself(path: Path) -> None:
    LogFile(path).append(
        [_entry("one", journal="boot", sequence=1), _entry("two", journal="boot", sequence=2)]
    )
    path.write_bytes(path.read_bytes()[:-20])
    log = LogFile(path)
    assert log.position() == Position("boot", 1)
    log.append([_entry("three")])
    assert [entry.message for entry in log.read()] == ["one", "three"]


def test_a_removed_log_stays_removed(path: Path) -> None:
    log = LogFile(path)
    log.append([_entry("one")])
    log.remove()
    log.append([_entry("late")])
    log.remove()
    assert not path.exists()
    assert log.read() == []


def test_after_a_failure_the_file_is_looked_at_again(path: Path) -> None:
    log = LogFile(path)
    log.append([_entry("one", journal="boot", sequence=1)])
    path.rename(path.with_suffix(".away"))
    path.mkdir()  # as unwritable as a full disk
    with pytest.raises(OSError, match="directory"):
        log.append([_entry("lost", journal="boot", sequence=2)])
    path.rmdir()
    path.with_suffix(".away").rename(path)
    assert log.position() == Position("boot", 1)
    log.append([_entry("two", journal="boot", sequence=2)])
    assert [entry.message for entry in log.read()] == ["one", "two"]
