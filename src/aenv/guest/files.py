"""Files in a guest: envd's service `filesystem.Filesystem` and its route `/files`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from aenv.errors import AenvError, RuntimeFailure
from aenv.guest.connect import check, guest_errors, read_bounded
from aenv.guest.errors import Code, GuestError

if TYPE_CHECKING:
    from aenv.guest.client import EnvdClient

STALL = 60.0
"""A transfer in which nothing moves for this long, seconds, is given up."""
CHUNK = 256 * 1024
"""Most bytes that are handed on at once."""
_SHORT_ANSWER = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """What is at a path. `mode` holds the permission bits, `size` is in bytes.

    `is_dir` and `is_file` speak of the target of a symbolic link, whose `symlink_target` isn't None;
    both are false for a device, a socket or a pipe.
    """

    name: str
    path: str
    is_dir: bool
    is_file: bool
    size: int
    mode: int
    owner: str
    group: str
    symlink_target: str | None = None


class Files:
    """`EnvdClient.files`. Every method raises GuestError, GuestUnresponsive or RuntimeFailure.

    Paths are absolute or relative to the user's home.
    """

    def __init__(self, client: EnvdClient) -> None:
        self._client = client

    async def stat(self, path: str, *, user: str | None = None) -> Entry:
        """What `path` is; GuestError `not_found` if there is nothing."""
        return _entry(await self._call("Stat", {"path": path}, user))

    async def exists(self, path: str, *, user: str | None = None) -> Entry | None:
        """As `stat`, but None if there is nothing."""
        try:
            return await self.stat(path, user=user)
        except GuestError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise

    async def list_dir(self, path: str, *, depth: int = 1, user: str | None = None) -> list[Entry]:
        """The entries of a folder, down to `depth` levels."""
        answer = await self._call("ListDir", {"path": path, "depth": depth}, user)
        return [_entry({"entry": fields}) for fields in answer.get("entries", [])]

    async def make_dir(self, path: str, *, user: str | None = None) -> Entry:
        """Make a folder and its parents; GuestError `already_exists` if it is there."""
        return _entry(await self._call("MakeDir", {"path": path}, user))

    async def move(self, source: str, destination: str, *, user: str | None = None) -> Entry:
        """Rename a file or folder, making the destination's parents."""
        return _entry(await self._call("Move", {"source": source, "destination": destination}, user))

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove a file, or a folder with all in it. Nothing there is no error."""
        await self._call("Remove", {"path": path}, user)

    async def _call(self, method: str, message: dict[str, Any], user: str | None) -> dict[str, Any]:
        return await self._client.call(f"filesystem.Filesystem/{method}", message, user=user)

    async def read(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes]:
        """The bytes of a file, streamed in chunks of at most `CHUNK`.

        Iterate it to the end, or close it (`contextlib.aclosing`). A connection that breaks raises
        GuestUnresponsive: the end of the iteration means that the file is complete.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=STALL)
        async with (
            guest_errors(f"reading {path}"),
            self._client.session.get(
                self._client.url("files"),
                params=self._query(path, user),
                headers={**self._client.headers, "Accept-Encoding": "identity"},
                timeout=limits,
            ) as response,
        ):
            await check(response, 200)
            async for chunk in response.content.iter_chunked(CHUNK):
                yield chunk

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, user: str | None = None) -> None:
        """Write a file, making its parents and replacing what was there.

        Data from an iterable is streamed; an error that it raises ends the upload and is passed on.
        """
        query = self._query(path, user)
        await self._post("files", query, "application/octet-stream", data, f"writing {path}", status=200)

    async def extract(
        self, archive: AsyncIterable[bytes], *, owner: str | None = None, mode: str | None = None
    ) -> None:
        """Unpack a tar archive whose names are absolute paths, for the server alone.

        What is written belongs to `owner` (root if None); `mode`, octal, replaces the archive's own. Folders
        are merged into those that exist.
        """
        query = {name: value for name, value in (("owner", owner), ("mode", mode)) if value}
        await self._post("extract", query, "application/x-tar", archive, "unpacking an archive", status=204)

    async def _post(
        self,
        route: str,
        query: dict[str, str],
        content_type: str,
        data: bytes | AsyncIterable[bytes],
        what: str,
        *,
        status: int,
    ) -> None:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=STALL)
        source: _Source | None = None
        try:
            async with guest_errors(what), asyncio.timeout(STALL) as stall:
                source = None if isinstance(data, bytes) else _Source(data, stall)
                async with self._client.session.post(
                    self._client.url(route),
                    params=query,
                    data=data if source is None else source.chunks(),
                    headers={**self._client.headers, "Content-Type": content_type},
                    timeout=limits,
                ) as response:
                    await check(response, status)
                    await read_bounded(response, _SHORT_ANSWER)
        except AenvError:
            if source is not None and source.error is not None:
                raise source.error from None
            raise

    def _query(self, path: str, user: str | None) -> dict[str, str]:
        username = user or self._client.user
        return {"path": path, "username": username} if username else {"path": path}


class _Source:
    """Hands data on to aiohttp, puts the timeout off whenever some was taken, and keeps its error.

    aiohttp's own read timeout begins only after the upload, so a guest that stops reading would hold it;
    and it turns an error of the data into one of the connection.
    """

    def __init__(self, data: AsyncIterable[bytes], stall: asyncio.Timeout) -> None:
        self._data = data
        self._stall = stall
        self.error: Exception | None = None

    async def chunks(self) -> AsyncGenerator[bytes]:
        now = asyncio.get_running_loop().time
        try:
            async for chunk in self._data:
                self._stall.reschedule(now() + STALL)
                yield chunk
        except Exception as error:
            self.error = error
            raise
        self._stall.reschedule(now() + STALL)


def _entry(answer: dict[str, Any]) -> Entry:
    try:
        fields = answer["entry"]
        return Entry(
            name=str(fields["name"]),
            path=str(fields["path"]),
            is_dir=fields.get("type") == "FILE_TYPE_DIRECTORY",
            is_file=fields.get("type") == "FILE_TYPE_FILE",
            size=int(fields.get("size", 0)),
            mode=int(fields.get("mode", 0)) & 0o7777,
            owner=str(fields.get("owner", "")),
            group=str(fields.get("group", "")),
            symlink_target=fields.get("symlinkTarget"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RuntimeFailure(
            f"the guest agent sent a file entry that can't be read: {str(answer)[:200]}"
        ) from error
