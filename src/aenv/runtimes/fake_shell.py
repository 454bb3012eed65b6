"""Processes and files of a fake guest: enough for a template build, on the one dict that is its disk.

A command line is words of a language of its own, several of them with ` && ` between:

    echo TEXT       to standard output        put KEY TEXT    onto the disk
    warn TEXT       to standard error         has KEY         fails if the disk hasn't got it
    show NAME       a variable                get KEY         what the disk has, to standard output
    whoami, pwd     who and where             fail CODE       ends with that code
    hang            goes on for ever          sleep SECONDS   takes no time here
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import tarfile
from collections.abc import Callable
from typing import Any

from aiohttp import web

_FOLDERS = ("/", "/bin", "/etc", "/home", "/home/user", "/root")
_FILES = {
    "/bin/bash": "",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
}
_FOLDER = "folder"
_STANDARD_USER = "user"


class _Ended(Exception):
    """A command line ended early."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class FakeShell:
    """Serves `process.Process/Start`, a part of `filesystem.Filesystem`, `/files`, `/extract` and `/grow`.

    `disk` says what is on the disk now, `write` puts something there; `note` hears each command line.
    """

    def __init__(
        self,
        app: web.Application,
        disk: Callable[[], dict[str, Any]],
        write: Callable[[str, Any], None],
        note: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._write = write
        self._note = note
        self.identity: dict[str, Any] = {}
        """What `/init` said."""
        self.closed = asyncio.Event()
        """To be set at the guest's end."""
        app.router.add_post("/process.Process/Start", self._start)
        app.router.add_post("/filesystem.Filesystem/Stat", self._stat)
        app.router.add_post("/filesystem.Filesystem/MakeDir", self._make_dir)
        app.router.add_get("/files", self._read)
        app.router.add_post("/files", self._save)
        app.router.add_post("/extract", self._extract)
        app.router.add_post("/grow", self._grow)

    def _at(self, path: str) -> Any:
        """What is at a path: a text, a folder's owner after `_FOLDER`, or None."""
        if path in _FOLDERS:
            return (_FOLDER, "root")
        found = self._disk().get(path, _FILES.get(path))
        return tuple(found) if isinstance(found, list) else found

    def _user(self, request: web.Request) -> str | None:
        """Who acts; None for an unknown user."""
        given = request.headers.get("Authorization", "").partition(" ")[2]
        name = base64.b64decode(given).decode().partition(":")[0] or self.identity.get("defaultUser")
        name = request.query.get("username") or name or _STANDARD_USER
        return name if self._knows(name) else None

    def _knows(self, name: str) -> bool:
        account = name.partition(":")[0]
        known = {line.split(":")[0] for line in str(self._at("/etc/passwd")).splitlines()}
        return account in known or account.isdecimal()

    # process.Process

    async def _start(self, request: web.Request) -> web.StreamResponse:
        config = json.loads((await request.read())[5:])["process"]
        user = self._user(request)
        if user is None:
            return _refusal(401, "unauthenticated", "invalid username")
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await response.prepare(request)
        await response.write(_frame({"event": {"start": {"pid": 1}}}))
        command = config["args"][-1]
        self._note(command)
        code = 0
        try:
            for part in command.split(" && "):
                kind, text = await self._do(part, user, config)
                if text is not None:
                    data = base64.b64encode(f"{text}\n".encode()).decode()
                    await response.write(_frame({"event": {"data": {kind: data}}}))
        except _Ended as error:
            code = error.code
        await response.write(_frame({"event": {"end": {"exitCode": code, "exited": True}}}))
        await response.write(_frame({}, flags=2))
        return response

    async def _do(self, part: str, user: str, config: dict[str, Any]) -> tuple[str, str | None]:
        """What one part says, and where; a part that fails raises."""
        word, _, rest = part.partition(" ")
        key, _, text = rest.partition(" ")
        said = {
            "echo": rest,
            "warn": rest,
            "show": {**self.identity.get("envVars", {}), **config["envs"]}.get(rest, ""),
            "whoami": user,
            "pwd": config.get("cwd") or f"/home/{user}",
            "get": str(self._disk().get(rest)),
        }
        if word in said:
            return "stderr" if word == "warn" else "stdout", said[word]
        if word == "put":
            self._write(key, text)
        elif word == "hang":
            await self.closed.wait()
            raise _Ended(137)
        elif word == "has" and self._disk().get(rest) is None:
            raise _Ended(1)
        elif word == "fail":
            raise _Ended(int(rest))
        elif word not in {"has", "sleep"}:
            raise _Ended(127)
        return "stdout", None

    # filesystem.Filesystem, /files

    async def _stat(self, request: web.Request) -> web.Response:
        path = (await request.json())["path"]
        if self._user(request) is None:
            return _refusal(401, "unauthenticated", "invalid username")
        found = self._at(path)
        if found is None:
            return _refusal(404, "not_found", f"path '{path}' does not exist")
        return web.json_response({"entry": _entry(path, found)})

    async def _make_dir(self, request: web.Request) -> web.Response:
        path, user = (await request.json())["path"], self._user(request)
        if user is None:
            return _refusal(401, "unauthenticated", "invalid username")
        if self._at(path) is not None:
            return _refusal(409, "already_exists", f"path '{path}' exists")
        self._write(path, (_FOLDER, user))
        return web.json_response({"entry": _entry(path, (_FOLDER, user))})

    async def _read(self, request: web.Request) -> web.Response:
        found = self._at(request.query["path"])
        if not isinstance(found, str):
            return web.json_response({"code": 404, "message": "it does not exist"}, status=404)
        return web.Response(text=found)

    async def _save(self, request: web.Request) -> web.Response:
        self._write(request.query["path"], (await request.read()).decode())
        return web.json_response([])

    async def _extract(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                for info in archive:
                    content = archive.extractfile(info)
                    text = (_FOLDER, request.query["owner"]) if content is None else content.read().decode()
                    self._write("/" + info.name, text)
        except tarfile.TarError as error:
            return web.json_response({"code": 400, "message": str(error)}, status=400)
        return web.Response(status=204)

    async def _grow(self, _request: web.Request) -> web.Response:
        self._write("grown", True)
        return web.Response(status=204)


def _frame(message: dict[str, Any], flags: int = 0) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


def _refusal(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)


def _entry(path: str, found: Any) -> dict[str, Any]:
    is_folder = isinstance(found, tuple)
    kind = "FILE_TYPE_DIRECTORY" if is_folder else "FILE_TYPE_FILE"
    return {
        "name": path.rpartition("/")[2],
        "path": path,
        "type": kind,
        "owner": found[1] if is_folder else "",
    }
