"""Files in a guest, with the real envd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from aenv.errors import GuestUnresponsive
from aenv.guest import files
from aenv.guest.client import EnvdClient
from aenv.guest.errors import Code, GuestError
from tests.unit.guest.support import serving


async def read(client: EnvdClient, path: Path) -> bytes:
    return b"".join([chunk async for chunk in client.files.read(str(path))])


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


@pytest.mark.parametrize(
    "name", ["plain", "with space", "ümlaut", "a%20b", "a+b&c=d", "new\nline", "-dash", "#?"]
)
async def test_names_of_all_kinds(client: EnvdClient, tmp_path: Path, name: str) -> None:
    await client.files.write(str(tmp_path / "new" / name), b"content")
    assert (tmp_path / "new" / name).read_bytes() == b"content"
    assert await read(client, tmp_path / "new" / name) == b"content"
    assert [entry.name for entry in await client.files.list_dir(str(tmp_path / "new"))] == [name]


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145])
async def test_bytes_go_and_come_back(client: EnvdClient, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    await client.files.write(str(tmp_path / "f"), data)
    assert await read(client, tmp_path / "f") == data


async def test_streams_go_and_come_back(client: EnvdClient, tmp_path: Path) -> None:
    piece = os.urandom(1_000_000)
    await client.files.write(str(tmp_path / "big"), pieces(*[piece] * 50))
    sizes = []
    async for chunk in client.files.read(str(tmp_path / "big")):
        sizes.append(len(chunk))  # noqa: PERF401
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= files.CHUNK
    assert (tmp_path / "big").read_bytes() == piece * 50


async def test_a_read_may_be_left(client: EnvdClient, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(10_000_000))
    async with aclosing(client.files.read(str(tmp_path / "big"))) as chunks:
        await anext(chunks)
    assert await client.files.exists(str(tmp_path / "big"))


async def test_an_error_of_the_data_is_passed_on(client: EnvdClient, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise PermissionError("not for you")

    with pytest.raises(PermissionError, match="not for you"):
        await client.files.write(str(tmp_path / "f"), broken())


async def test_a_guest_that_stops_reading_ends_the_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.Event().wait()

    monkeypatch.setattr(files, "STALL", 0.2)
    async with serving(stuck) as url, EnvdClient(url) as client:
        with pytest.raises(GuestUnresponsive):
            await client.files.write("/f", pieces(*[bytes(1_000_000)] * 50))


async def test_a_file_cut_short_isnt_taken_for_whole() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")

    async with serving(cut) as url, EnvdClient(url) as client:
        with pytest.raises(GuestUnresponsive):
            [chunk async for chunk in client.files.read("/f")]


async def test_entries(client: EnvdClient, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o751)
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    entry = await client.files.stat(str(tmp_path / "file"))
    assert (entry.name, entry.size, entry.mode, entry.owner) == ("file", 5, 0o751, "root")
    assert (entry.is_file, entry.is_dir, entry.symlink_target) == (True, False, None)
    link = await client.files.stat(str(tmp_path / "link"))
    assert link.is_file
    assert link.symlink_target is not None
    pipe = await client.files.stat(str(tmp_path / "pipe"))
    assert (pipe.is_file, pipe.is_dir) == (False, False)
    assert await client.files.exists(str(tmp_path / "nothing")) is None


async def test_folders(client: EnvdClient, tmp_path: Path) -> None:
    made = await client.files.make_dir(str(tmp_path / "a" / "b"))
    assert made.is_dir
    with pytest.raises(GuestError) as again:
        await client.files.make_dir(str(tmp_path / "a" / "b"))
    assert again.value.code is Code.ALREADY_EXISTS
    listed = await client.files.list_dir(str(tmp_path), depth=2)
    assert [entry.path for entry in listed] == [str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    await client.files.move(str(tmp_path / "a" / "b"), str(tmp_path / "c" / "d"))
    await client.files.remove(str(tmp_path / "a"))
    await client.files.remove(str(tmp_path / "a"))
    left = await client.files.list_dir(str(tmp_path), depth=2)
    assert [entry.name for entry in left] == ["c", "d"]


async def test_what_isnt_there_is_said(client: EnvdClient, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    with pytest.raises(GuestError) as unread:
        await read(client, tmp_path / "nothing")
    with pytest.raises(GuestError) as unlisted:
        await client.files.list_dir(missing)
    assert {unread.value.code, unlisted.value.code} == {Code.NOT_FOUND}


async def test_a_folder_isnt_a_file(client: EnvdClient, tmp_path: Path) -> None:
    with pytest.raises(GuestError) as refused:
        await client.files.write(str(tmp_path), pieces(*[bytes(1_000_000)] * 20))
    assert refused.value.code is Code.INVALID_ARGUMENT


async def test_files_belong_to_their_user(client: EnvdClient, tmp_path: Path) -> None:
    await client.files.write(str(tmp_path / "f"), b"x", user="nobody")
    assert (await client.files.stat(str(tmp_path / "f"))).owner == "nobody"
