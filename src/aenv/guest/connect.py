"""The Connect protocol with its JSON codec, over aiohttp: unary calls and server streams.

https://connectrpc.com/docs/protocol/ . A stream is a sequence of frames: one byte of flags, four bytes of
big-endian length, JSON. Flag 0x02 marks the last frame, which carries the error if there is one.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from aenv.errors import GuestUnresponsive, RuntimeFailure
from aenv.guest.errors import error_of_fields, error_of_response

MAX_MESSAGE = 64 * 1024 * 1024
"""Largest message taken from a guest, bytes; envd has the same limit."""
ERROR_BODY = 64 * 1024
"""As much of an error's body as is read, bytes."""
KEEPALIVE = 50
"""envd sends something on every open stream at least this often, seconds, because we ask for it."""
STREAM_SILENCE = 2.5 * KEEPALIVE
"""A stream silent for longer, seconds, is dead."""

_PREFIX = struct.Struct(">BI")
_END = 0x02
_COMPRESSED = 0x01

_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError)


def timeouts(seconds: float, connect: float = 5.0) -> aiohttp.ClientTimeout:
    """Bounds of a request that is answered at once: in all, and for the connection."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(connect, seconds))


@asynccontextmanager
async def guest_errors(what: str) -> AsyncIterator[None]:
    """Turn transport failures during `what` into `GuestUnresponsive` or `RuntimeFailure`."""
    try:
        yield
    except _LOST as error:
        reason = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "connection lost")
        raise GuestUnresponsive(f"{what}: the guest agent doesn't answer ({reason})") from error
    except aiohttp.ClientError as error:
        raise RuntimeFailure(f"{what}: the guest agent answered what isn't HTTP ({error})") from error


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of `response`, at most `limit` bytes. Raises RuntimeFailure if there is more."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            response.close()
            raise RuntimeFailure(f"the guest agent sent more than {limit} bytes where a short answer belongs")
        parts.append(part)
    return b"".join(parts)


async def check(response: aiohttp.ClientResponse, *expected: int) -> None:
    """Raise the GuestError that `response` states unless its status is an expected one."""
    if response.status not in expected:
        raise error_of_response(response.status, (await response.content.read(ERROR_BODY))[:ERROR_BODY])


def parse(body: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `body`. Raises RuntimeFailure for anything else."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RuntimeFailure(f"{what}: the guest agent answered what isn't JSON") from error
    if not isinstance(fields, dict):
        raise RuntimeFailure(f"{what}: the guest agent answered JSON that isn't an object")
    return fields


async def unary(
    session: aiohttp.ClientSession,
    url: str,
    message: Mapping[str, Any],
    headers: Mapping[str, str],
    timeout: float,
) -> dict[str, Any]:
    """One call, one answer, within `timeout` seconds.

    Raises GuestError for an error that the guest reports, GuestUnresponsive, RuntimeFailure.
    """
    sent = {**headers, "Content-Type": "application/json", "Connect-Protocol-Version": "1"}
    body = json.dumps(message, separators=(",", ":")).encode()
    what = url.rpartition(".")[2]
    async with (
        guest_errors(what),
        session.post(url, data=body, headers=sent, timeout=timeouts(timeout)) as response,
    ):
        await check(response, 200)
        return parse(await read_bounded(response, MAX_MESSAGE), what)


def _check_type(response: aiohttp.ClientResponse, what: str) -> None:
    if response.content_type != "application/connect+json":
        raise RuntimeFailure(f"{what}: the guest agent answered with {response.content_type}")


class MessageStream:
    """The messages of a server stream, in order. Owns the connection: `close` it."""

    def __init__(self, response: aiohttp.ClientResponse, what: str) -> None:
        self._response = response
        self._what = what
        self._ended = False

    @classmethod
    async def open(
        cls,
        session: aiohttp.ClientSession,
        url: str,
        message: Mapping[str, Any],
        headers: Mapping[str, str],
        *,
        deadline: float | None = None,
    ) -> MessageStream:
        """Start the call. `deadline`, seconds, is told to the guest, which ends the call then.

        Raises GuestError, GuestUnresponsive, RuntimeFailure.
        """
        sent = {
            **headers,
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Keepalive-Ping-Interval": str(KEEPALIVE),
        }
        if deadline is not None:
            sent["Connect-Timeout-Ms"] = str(max(1, int(deadline * 1000)))
        body = json.dumps(message, separators=(",", ":")).encode()
        what = url.rpartition(".")[2]
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=STREAM_SILENCE)
        async with guest_errors(what):
            frame = _PREFIX.pack(0, len(body)) + body
            response = await session.post(url, data=frame, headers=sent, timeout=limits)
            try:
                await check(response, 200)
                _check_type(response, what)
            except BaseException:
                response.close()
                raise
        return cls(response, what)

    async def next(self) -> dict[str, Any] | None:
        """The next message, or None at the end. Raises as `open` does."""
        if self._ended:
            return None
        async with guest_errors(self._what):
            flags, payload = await self._frame()
        fields = parse(payload, self._what)
        if not flags & _END:
            return fields
        self._ended = True
        if "error" in fields:
            raise error_of_fields(fields["error"])
        return None

    async def _frame(self) -> tuple[int, bytes]:
        content = self._response.content
        try:
            flags, length = _PREFIX.unpack(await content.readexactly(_PREFIX.size))
            if flags & _COMPRESSED or length > MAX_MESSAGE:
                raise RuntimeFailure(f"{self._what}: the guest agent sent a frame that can't be right")
            return flags, await content.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise GuestUnresponsive(f"{self._what}: the connection ended in the middle") from error

    def close(self) -> None:
        """Give up the connection. Idempotent."""
        self._ended = True
        self._response.close()
