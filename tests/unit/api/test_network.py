"""A sandbox's network configuration, as far as it is about traffic to it."""

from __future__ import annotations

from typing import Any

import pytest

from aenv.guest import ENVD_PORT
from tests.unit.api.support import Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGURATION = {
    "allowPublicTraffic": False,
    "maskRequestHost": "localhost:${PORT}",
    "httpsPorts": [8443, 9443],
}


async def shown(server: Server, sandbox_id: str) -> Any:
    """The configuration as info has it."""
    return (await server.request("GET", f"/sandboxes/{sandbox_id}")).body["network"]


async def test_it_is_shown_and_kept(server: Server) -> None:
    sandbox_id = await server.create(network=CONFIGURATION)
    assert await shown(server, sandbox_id) == CONFIGURATION
    forked = await server.request("POST", f"/sandboxes/{sandbox_id}/fork", {"count": 1})
    child = forked.body[0]["sandbox"]
    assert await shown(server, child["sandboxID"]) == CONFIGURATION
    await server.request("POST", f"/sandboxes/{sandbox_id}/pause", {})
    assert await shown(server, sandbox_id) == CONFIGURATION
    resumed = await server.request("POST", f"/v2/sandboxes/{sandbox_id}/connect", {})
    assert resumed.status == 201
    assert await shown(server, sandbox_id) == CONFIGURATION


async def test_a_childs_traffic_token_is_its_own(server: Server) -> None:
    created = await server.request("POST", "/v2/sandboxes", {"templateID": "base", "network": CONFIGURATION})
    token = created.body["trafficAccessToken"]
    forked = await server.request("POST", f"/sandboxes/{created.body['sandboxID']}/fork", {"count": 1})
    assert forked.body[0]["sandbox"]["trafficAccessToken"] not in (None, token)


@pytest.mark.parametrize(
    "mask",
    [
        "",
        "a b",
        "a/b",
        "http://a",
        "a\r\nX: y",
        "a..b",
        "-a",
        "a:b",
        "a:1:2",
        "x" * 254,
        "x" * 64,
        "${port}",
        "ü",
    ],
)
async def test_masks_that_are_no_host_are_refused(server: Server, mask: str) -> None:
    body = {"templateID": "base", "network": {"maskRequestHost": mask}}
    assert is_error(await server.request("POST", "/v2/sandboxes", body), 400, "maskRequestHost")


@pytest.mark.parametrize("ports", [[0], [65536], [-1], ["3000"], [1.5], [ENVD_PORT], "3000", [1] * 101])
async def test_ports_that_are_none_are_refused(server: Server, ports: Any) -> None:
    body = {"templateID": "base", "network": {"httpsPorts": ports}}
    assert is_error(await server.request("POST", "/v2/sandboxes", body), 400, "httpsPorts")


@pytest.mark.parametrize(
    "update", [{"maskRequestHost": "a"}, {"httpsPorts": [1]}, {"allowPublicTraffic": False}]
)
async def test_an_update_is_about_egress_only(server: Server, update: dict[str, Any]) -> None:
    sandbox_id = await server.create(network=CONFIGURATION)
    answer = await server.request("PUT", f"/sandboxes/{sandbox_id}/network", update)
    assert is_error(answer, 400, next(iter(update)))
    assert (await server.request("PUT", f"/sandboxes/{sandbox_id}/network", {})).status == 204
    assert await shown(server, sandbox_id) == CONFIGURATION
