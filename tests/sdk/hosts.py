"""A program of an E2B user that knows the server by its domain only; the twin of js/hosts.mjs.

Run with E2B_DOMAIN, E2B_API_KEY and SSL_CERT_FILE set; exits with 0 if everything behaved. What follows the
file name are the classes of the SDK's exceptions that a broken stream may raise.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request

import e2b
from e2b import Sandbox


def fetch(url: str, data: bytes | None = None) -> tuple[int, str]:
    """Status and body of a request to a sandbox, by somebody who only has the URL."""
    try:
        with urllib.request.urlopen(url, data, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def served(url: str) -> str:
    """The body, once the server in the sandbox has started."""
    end = time.monotonic() + 20
    while True:
        status, body = fetch(url)
        if status == 200:
            return body
        assert (status, "port is not open" in body) == (502, True), (status, body)
        assert time.monotonic() < end
        time.sleep(0.1)


def addresses(sandbox: Sandbox) -> None:
    """URLs of ports, open, closed and of nobody, and signed URLs of files."""
    domain = os.environ["E2B_DOMAIN"]
    assert sandbox.sandbox_domain == domain
    host = sandbox.get_host(3000)
    assert host == f"3000-{sandbox.sandbox_id}.{domain}"
    sandbox.files.write("site/index.html", "served")
    assert sandbox.files.read("site/index.html") == "served"
    server = sandbox.commands.run("python3 -m http.server 3000 -d site", background=True)
    assert served(f"https://{host}/index.html") == "served"
    server.kill()

    status, body = fetch(f"https://{sandbox.get_host(3001)}/")
    assert (status, "port is not open" in body) == (502, True), body
    nobody = sandbox.get_host(3000).replace(sandbox.sandbox_id, "inothing0000000000000")
    status, body = fetch(f"https://{nobody}/")
    assert (status, "was not found" in body) == (502, True), body

    url = sandbox.download_url("site/index.html")
    assert url.startswith(f"https://49983-{sandbox.sandbox_id}.{domain}/")
    assert fetch(url) == (200, "served")


def broken(sandbox: Sandbox, *, by_pause: bool) -> None:
    """What a running command's stream raises when its sandbox stops."""
    handle = sandbox.commands.run("echo started; sleep 300", background=True, timeout=0)
    if by_pause:
        sandbox.pause()
    else:
        sandbox.kill()
    expected = tuple(getattr(e2b, name) for name in sys.argv[1:])
    try:
        handle.wait()
    except expected as error:
        assert type(error) in expected, repr(error)
    else:
        raise AssertionError("a stream that broke off must raise")
    assert not sandbox.is_running()
    status, body = fetch(f"https://{sandbox.get_host(3000)}/")
    assert (status, "was not found" in body) == (502, True), body


def main() -> None:
    """Run all of it."""
    sandbox = Sandbox.create("base", timeout=300)
    addresses(sandbox)
    broken(sandbox, by_pause=True)
    sandbox.connect(timeout=300)
    assert sandbox.commands.run("echo again").stdout == "again\n"
    broken(sandbox, by_pause=False)
    assert not sandbox.kill()


main()
