"""URLs that carry their own permission, used without an SDK: uploads, downloads, parts and conditions."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from tests.sdk.web import request
from tests.server import Server

pytestmark = [pytest.mark.vm, pytest.mark.timeout(120)]

OCTETS = {"Content-Type": "application/octet-stream"}


def test_a_download(server: Server, sandbox: Any) -> None:
    sandbox.files.write("some file+ü", "content")
    for url in (
        sandbox.download_url("some file+ü"),
        sandbox.download_url("/home/user/some file+ü", user="user"),
        sandbox.download_url("some file+ü", use_signature_expiration=60),
    ):
        answer = request(server, sandbox, url)
        assert (answer.status, answer.body) == (200, b"content")
        assert answer.headers["content-disposition"].startswith("inline; filename")
        assert answer.headers["content-length"] == "7"
    assert request(server, sandbox, sandbox.download_url("none")).status == 404


def test_an_expired_signature(server: Server, sandbox: Any) -> None:
    sandbox.files.write("file", "content")
    url = sandbox.download_url("file", use_signature_expiration=1)
    assert request(server, sandbox, url).status == 200
    end = time.monotonic() + 10
    while (answer := request(server, sandbox, url)).status == 200 and time.monotonic() < end:
        time.sleep(0.2)
    assert (answer.status, json.loads(answer.body)) == (
        401,
        {"code": 401, "message": "signature is already expired"},
    )
    upload = request(
        server,
        sandbox,
        sandbox.upload_url("x", use_signature_expiration=-5),
        method="POST",
        body=b"",
        headers=OCTETS,
    )
    assert json.loads(upload.body) == {"code": 401, "message": "signature is already expired"}


def test_a_signature_is_for_one_thing(server: Server, sandbox: Any) -> None:
    sandbox.files.write("file", "content")
    url = sandbox.download_url("file", use_signature_expiration=60)
    longer = url.replace("signature_expiration=", "signature_expiration=9")
    for wrong in (
        url.replace("path=file", "path=other"),
        url + "&username=root",
        longer,
        url.replace("signature=v1_", "signature=v1_x"),
        sandbox.upload_url("file"),
    ):
        answer = request(server, sandbox, wrong)
        assert (answer.status, json.loads(answer.body)["message"]) == (401, "invalid signature"), wrong
    posted = request(server, sandbox, url, method="POST", body=b"x", headers=OCTETS)
    assert posted.status == 401
    bare = request(server, sandbox, "/files?path=file")
    assert (bare.status, json.loads(bare.body)["message"]) == (401, "missing signature query parameter")


def test_uploads_of_every_form(server: Server, sandbox: Any) -> None:
    def put(body: Any, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = request(
            server, sandbox, sandbox.upload_url("up/loaded"), method="POST", body=body, headers=named
        )
        assert answer.status == 200, answer
        assert json.loads(answer.body)[0]["path"] == "/home/user/up/loaded"

    content = bytes(range(256)) * 2000
    put(content, Content_Type="application/octet-stream")
    assert bytes(sandbox.files.read("up/loaded", format="bytes")) == content
    put(
        iter([content[:1000], content[1000:]]),
        Content_Type="application/octet-stream",
        Transfer_Encoding="chunked",
    )
    assert bytes(sandbox.files.read("up/loaded", format="bytes")) == content
    put(gzip.compress(b"inflated"), Content_Type="application/octet-stream", Content_Encoding="gzip")
    assert sandbox.files.read("up/loaded") == "inflated"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="other"\r\n\r\npart\r\n--b--\r\n'
    put(part, Content_Type="multipart/form-data; boundary=b")
    assert sandbox.files.read("up/loaded") == "part"
    put(
        iter([part[:30], part[30:]]),
        Content_Type="multipart/form-data; boundary=b",
        Transfer_Encoding="chunked",
    )
    put(b"", Content_Type="application/octet-stream", X_Metadata_Source="unit test")
    assert sandbox.files.get_info("up/loaded").metadata == {"source": "unit test"}
    broken = request(
        server,
        sandbox,
        sandbox.upload_url("up/new"),
        method="POST",
        body=b"no gzip",
        headers={**OCTETS, "Content-Encoding": "gzip"},
    )
    assert broken.status == 400
    assert not sandbox.files.exists("up/new")


def test_parts_and_conditions(server: Server, sandbox: Any) -> None:
    sandbox.files.write("digits", "0123456789")
    url = sandbox.download_url("digits")

    def get(**headers: str) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = request(server, sandbox, url, headers=named)
        return answer.status, answer.body

    assert get(Range="bytes=2-4") == (206, b"234")
    assert get(Range="bytes=-3") == (206, b"789")
    assert get(Range="bytes=7-") == (206, b"789")
    assert get(Range="bytes=20-")[0] == 416
    assert get(Range="bytes=0-0,5-6", Accept_Encoding="gzip")[0] == 206
    modified = request(server, sandbox, url).headers["last-modified"]
    assert get(If_Modified_Since=modified, Accept_Encoding="gzip") == (304, b"")
    assert get(If_Unmodified_Since="Thu, 01 Jan 1970 00:00:00 GMT")[0] == 412
    assert get(Range="bytes=2-4", If_Range=modified) == (206, b"234")
    assert get(Range="bytes=2-4", If_Range="Thu, 01 Jan 1970 00:00:00 GMT") == (200, b"0123456789")


def test_compression_is_for_those_who_ask(server: Server, sandbox: Any) -> None:
    sandbox.files.write("zeros", b"0" * 100_000)
    url = sandbox.download_url("zeros")
    packed = request(server, sandbox, url, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.body) == b"0" * 100_000
    plain = request(server, sandbox, url, headers={"Accept-Encoding": "gzip, deflate"})
    assert "content-encoding" not in plain.headers
    head = request(server, sandbox, url, method="HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, "100000", b"")
    sandbox.files.write("empty", "")
    for accepted in ("gzip", "identity"):
        empty = request(server, sandbox, sandbox.download_url("empty"), headers={"Accept-Encoding": accepted})
        assert (empty.headers["content-length"], empty.body) == ("0", b"")
