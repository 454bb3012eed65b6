"""A merged overlay reads, byte for byte, as the overlays it was made from, over whatever is below."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from aenv.disks.chain import chain
from aenv.disks.merge import merge, merge_from
from aenv.disks.qcow2 import CLUSTER, create_overlay
from aenv.errors import RuntimeFailure

SIZE = (5 << 20) + 3 * 512  # the last cluster isn't whole


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def image(overlays: list[Path], base: Path) -> str:
    """A chain in the form in which QEMU's tools take it."""
    node = chain("top", overlays[-1], overlays[:-1], base)
    return "json:" + json.dumps({key: value for key, value in node.items() if key != "node-name"})


def content(overlays: list[Path], base: Path, folder: Path) -> bytes:
    """Every byte of a disk, read by QEMU."""
    raw = folder / "content.raw"
    run("qemu-img", "convert", "-O", "raw", image(overlays, base), str(raw))
    return raw.read_bytes()


def base_of(folder: Path, filler: bytes) -> Path:
    path = folder / f"base-{filler.hex()}.raw"
    path.write_bytes(filler * SIZE)
    return path


def written(folder: Path, base: Path, count: int, seed: int) -> list[Path]:
    """Overlays with writes, zeros and discards of all sizes, by QEMU."""
    choice = random.Random(seed)  # noqa: S311 (which tests are made, no secret)
    overlays: list[Path] = []
    for number in range(count):
        path = folder / f"{number}.qcow2"
        create_overlay(path, SIZE)
        overlays.append(path)
        commands = []
        for _ in range(choice.randrange(1, 12)):
            start = choice.randrange(SIZE // 512)
            length = min(choice.choice([1, 8, 128, 129, 700, 2000]), SIZE // 512 - start)
            verb = choice.choice(["write -P 170", f"write -P {number}", "write -z", "write -zu", "discard"])
            commands += ["-c", f"{verb} {start * 512} {length * 512}"]
        run("qemu-io", "-d", "unmap", *commands, image(overlays, base))
    return overlays


def check(path: Path) -> None:
    found = json.loads(run("qemu-img", "check", "--output=json", str(path)))
    assert (found["check-errors"], found.get("leaks", 0), found.get("corruptions", 0)) == (0, 0, 0)


MORE = [pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 60)]


@pytest.mark.parametrize("seed", [*range(4), *MORE])
def test_merged_overlays_read_the_same(tmp_path: Path, seed: int) -> None:
    base, other = base_of(tmp_path, b"b"), base_of(tmp_path, b"c")
    overlays = written(tmp_path, base, 2 + seed % 7, seed)
    merged = tmp_path / "merged.qcow2"
    start = seed % 2
    merge(overlays[start:], merged)
    check(merged)
    assert merged.stat().st_mode & 0o777 == 0o600
    for below in (base, other):  # nothing of the base is in it, and what reads as zeros hides the base
        assert content([*overlays[:start], merged], below, tmp_path) == content(overlays, below, tmp_path)


def test_a_merged_overlay_can_be_written_over_and_merged_again(tmp_path: Path) -> None:
    base = base_of(tmp_path, b"b")
    overlays = written(tmp_path, base, 3, 1)
    first = tmp_path / "first.qcow2"
    merge(overlays, first)
    top = tmp_path / "top.qcow2"
    create_overlay(top, SIZE)
    run("qemu-io", "-c", "write -P 7 1M 300k", "-c", "write -z 3M 64k", image([first, top], base))
    second = tmp_path / "second.qcow2"
    merge([first, top], second)
    check(second)
    assert content([second], base, tmp_path) == content([*overlays, top], base, tmp_path)


def test_a_large_disk_needs_no_large_file(tmp_path: Path) -> None:
    size = 5 << 40
    overlays = [tmp_path / "0", tmp_path / "1"]
    for number, path in enumerate(overlays):
        create_overlay(path, size)
        run("qemu-io", "-c", f"write -P 5 {number + 3}T 70000", str(path))
    merge(overlays, tmp_path / "merged")
    check(tmp_path / "merged")
    assert (tmp_path / "merged").stat().st_blocks * 512 < 2 << 20
    for number in range(2):
        read = run("qemu-io", "-c", f"read -P 5 {number + 3}T 70000", str(tmp_path / "merged"))
        assert "verification failed" not in read


def test_nothing_is_left_of_a_merge_that_was_stopped(tmp_path: Path) -> None:
    overlays = written(tmp_path, base_of(tmp_path, b"b"), 3, 1)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        merge(overlays, tmp_path / "merged", stop)
    calls = 0

    def stop_later() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        merge(overlays, tmp_path / "merged", stop_later)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:1000], "is damaged"),
        (lambda content: content[:50], "cut short"),
        (lambda content: content[: -2 * CLUSTER], "cut short"),
        (lambda content: b"X" + content[1:], "doesn't start like an overlay"),
        (lambda content: content[:79] + b"\x04" + content[80:], "was not made here"),
    ],
)
def test_a_damaged_overlay_is_refused(tmp_path: Path, damage: object, words: str) -> None:
    assert callable(damage)
    overlays = [tmp_path / "0", tmp_path / "1"]
    for path in overlays:
        create_overlay(path, SIZE)
        run("qemu-io", "-c", "write -P 5 0 1M", str(path))
    overlays[1].write_bytes(damage(overlays[1].read_bytes()))
    with pytest.raises(RuntimeFailure, match=words) as failure:
        merge(overlays, tmp_path / "merged")
    assert str(overlays[1]) in str(failure.value)
    assert not (tmp_path / "merged").exists()


def test_overlays_of_different_disks_are_not_merged(tmp_path: Path) -> None:
    overlays = [tmp_path / "0", tmp_path / "1"]
    for number, path in enumerate(reversed(overlays), 1):
        create_overlay(path, SIZE * number)
    with pytest.raises(RuntimeFailure, match="different disks"):
        merge(overlays, tmp_path / "merged")


def test_overlays_of_a_disk_that_has_grown_are_merged(tmp_path: Path) -> None:
    overlays = [tmp_path / "0", tmp_path / "1"]
    for number, path in enumerate(overlays, 1):
        create_overlay(path, SIZE * number)
        run("qemu-io", "-c", f"write -P {number} {SIZE * (number - 1)} 1M", str(path))
    merge(overlays, tmp_path / "merged")
    for number in (1, 2):
        checked = f"read -P {number} {SIZE * (number - 1)} 1M"
        assert "verification failed" not in run("qemu-io", "-c", checked, str(tmp_path / "merged"))


def test_what_is_written_stays_in_proportion_to_what_changed() -> None:
    assert merge_from([1] * 32, 32) is None
    assert merge_from([1] * 33, 32) == 0
    assert merge_from([1000] + [1] * 32, 32) == 1
    assert merge_from([1000, 300] + [1] * 32, 32) == 2
    assert merge_from([1000, 60] + [1] * 32, 32) == 1
    assert merge_from([0] * 33, 32) == 0
    sizes: list[int] = []
    copied = 0
    for _ in range(10_000):
        sizes.append(1)
        if (start := merge_from(sizes, 32)) is not None:
            merged = sum(sizes[start:])
            copied += merged
            sizes[start:] = [merged]
        assert len(sizes) <= 33
    assert copied < 10_000 * 8
