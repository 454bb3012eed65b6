"""A program of a user in a sandbox: a small server, with what Python has on board.

`python3 application.py PORT [CERTIFICATE]`. It answers `/` with what it was sent, `/events` with server-sent
events, `/echo` with the request's body as it comes, `/half` with its half of the connection closed, and a
WebSocket by sending every text back.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import ssl
import sys
from asyncio import IncompleteReadError, StreamReader, StreamWriter

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
visits = 0


async def events(writer: StreamWriter) -> None:
    """One event every tenth of a second, without end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    number = 0
    while True:
        writer.write(b"data: %d\n\n" % number)
        await writer.drain()
        number += 1
        await asyncio.sleep(0.1)


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    """A chunked body, sent back chunk by chunk."""
    writer.write(CHUNKED)
    size = -1
    while size != 0:
        line = await reader.readline()
        size = int(line, 16)
        writer.write(line + await reader.readexactly(size + 2))
        await writer.drain()


async def websocket(reader: StreamReader, writer: StreamWriter, key: str) -> None:
    """Short masked text frames, sent back unmasked; anything else ends it."""
    accept = base64.b64encode(hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest()).decode()
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket"
    writer.write(f"HTTP/1.1 101 Switching\r\n{upgrade}\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
    while True:
        kind, length = await reader.readexactly(2)
        mask = await reader.readexactly(4)
        data = await reader.readexactly(length & 0x7F)
        if kind != 0x81:
            return
        text = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        writer.write(bytes([0x81, len(text)]) + text)


async def answer(reader: StreamReader, writer: StreamWriter) -> None:
    """One connection, one request."""
    global visits  # noqa: PLW0603
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    path = lines[0].split()[1]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    visits += 1
    if "sec-websocket-key" in headers:
        await websocket(reader, writer, headers["sec-websocket-key"])
    elif path == "/events":
        await events(writer)
    elif path == "/echo":
        await echo(reader, writer)
    elif path == "/half":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhalf")
        writer.write_eof()
        await reader.read()
    else:
        body = json.dumps({"headers": headers, "visits": visits}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)


async def connected(reader: StreamReader, writer: StreamWriter) -> None:
    """Answer, and close whatever happens."""
    try:
        await answer(reader, writer)
    except (ConnectionError, IncompleteReadError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until killed."""
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2])
    server = await asyncio.start_server(connected, "0.0.0.0", int(sys.argv[1]), ssl=context)  # noqa: S104
    await server.serve_forever()


asyncio.run(main())
