"""The sandbox routes: success codes, bodies, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from aenv.errors import RuntimeFailure
from aenv.runtimes.base import Capture, Instance
from aenv.runtimes.fake import FakeBareVmm
from tests.unit.api.support import Server, is_error

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = "i00000000000000000000"


async def test_create_v2_is_secure_and_complete(server: Server) -> None:
    answer = await server.request(
        "POST", "/v2/sandboxes", {"templateID": "base", "metadata": {}, "envVars": {}}
    )
    assert answer.status == 201
    assert answer.body["envdVersion"] == "0.6.13"
    assert answer.body["clientID"] == "aenv"
    assert answer.body["alias"] == "base"
    assert len(answer.body["envdAccessToken"]) == 64
    assert answer.body["trafficAccessToken"] is None
    assert answer.body["domain"] is None


@pytest.mark.parametrize("secure", [True, False, None])
async def test_create_v1_is_secure_when_asked(server: Server, secure: bool | None) -> None:
    answer = await server.request("POST", "/sandboxes", {"templateID": "base", "secure": secure})
    assert answer.status == 201
    assert ("envdAccessToken" in answer.body) is bool(secure)


async def test_defaults_of_the_two_generations(server: Server) -> None:
    for path, seconds in (("/v2/sandboxes", 300), ("/sandboxes", 15)):
        created = await server.request("POST", path, {"templateID": "base"})
        info = await server.request("GET", f"/sandboxes/{created.body['sandboxID']}")
        start, end = (datetime.fromisoformat(info.body[name]) for name in ("startedAt", "endAt"))
        assert start.tzinfo == UTC
        assert abs((end - start).total_seconds() - seconds) < 5
        assert info.body["lifecycle"] == {"autoResume": False, "onTimeout": "pause"}


async def test_info_shows_what_was_asked_for(server: Server) -> None:
    created = await server.request(
        "POST",
        "/v2/sandboxes",
        {
            "templateID": "base:default",
            "timeout": 60,
            "autoPause": False,
            "autoPauseMemory": True,
            "autoResume": {"enabled": True},
            "metadata": {"a": "b c"},
            "network": {"allowPublicTraffic": False},
            "allow_internet_access": True,
        },
    )
    assert len(created.body["trafficAccessToken"]) == 64
    info = await server.request("GET", f"/sandboxes/{created.body['sandboxID']}")
    assert info.status == 200
    assert info.body["metadata"] == {"a": "b c"}
    assert info.body["network"] == {"allowPublicTraffic": False}
    assert info.body["allowInternetAccess"] is True
    assert info.body["lifecycle"] == {"autoResume": True, "onTimeout": "kill"}
    assert info.body["envdAccessToken"] == created.body["envdAccessToken"]
    assert (info.body["cpuCount"], info.body["memoryMB"], info.body["diskSizeMB"]) == (2, 512, 10240)
    assert info.body["state"] == "running"
    assert "pauseMode" not in info.body


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"volumeMounts": [{"name": "v", "path": "/m"}]}, "volumeMounts"),
        ({"iam": {"tokens": {"a": {"audience": "x", "tokenType": "JWT-SVID"}}}}, "iam"),
        ({"mcp": {"x": {}}}, "mcp"),
        ({"allow_internet_access": False}, "allow_internet_access"),
        ({"network": {"allowOut": ["1.1.1.1"]}}, "network.allowOut"),
        ({"network": {"denyOut": ["0.0.0.0/0"]}}, "network.denyOut"),
        ({"network": {"dnsServers": ["1.1.1.1"]}}, "network.dnsServers"),
        ({"network": {"egressProxy": {"address": "p:1"}}}, "network.egressProxy"),
        ({"network": {"rules": {"h.com": []}}}, "network.rules"),
    ],
)
async def test_unsupported_fields_are_refused_by_name(server: Server, fields: Any, word: str) -> None:
    answer = await server.request("POST", "/v2/sandboxes", {"templateID": "base"} | fields)
    assert is_error(answer, 400, word, "not supported")


async def test_fields_that_ask_for_nothing_are_accepted(server: Server) -> None:
    await server.create(
        mcp=None,
        volumeMounts=[],
        iam={},
        network={"allowOut": [], "rules": {}, "egressProxy": None},
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v2/sandboxes", {"templateID": "base", "volumes": []}, "volumes"),
        ("POST", "/sandboxes", {"templateID": "base", "allowInternetAccess": False}, "allowInternetAccess"),
        ("POST", "/v2/sandboxes", {"templateID": "base", "network": {"denyIn": ["::/0"]}}, "network.denyIn"),
        ("POST", "/v2/sandboxes", {"templateID": "base", "autoResume": {"enabled": True, "x": 1}}, "x"),
        ("POST", "/v2/sandboxes", {"templateID": "base", "secure": False}, "secure"),
        ("POST", "/sandboxes/{}/pause", {"keepMemory": False}, "keepMemory"),
        ("POST", "/sandboxes/{}/connect", {"timeout": 9, "reboot": True}, "reboot"),
        ("POST", "/sandboxes/{}/timeout", {"timeout": 9, "unit": "h"}, "unit"),
        ("PUT", "/sandboxes/{}/network", {"allow": []}, "allow"),
    ],
)
async def test_unknown_fields_are_refused_by_name(
    server: Server, method: str, path: str, body: Any, field: str
) -> None:
    sandbox_id = await server.create()
    assert is_error(await server.request(method, path.format(sandbox_id), body), 400, field)
    info = await server.request("GET", f"/sandboxes/{sandbox_id}")
    assert info.body["state"] == "running"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 10**9}, "timeout"),
        ({"timeout": 1.5}, "timeout"),
        ({"timeout": "60"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"envVars": {"a=b": "c"}}, "envVars"),
        ({"envVars": {"a": "x\0y"}}, "envVars"),
        ({"templateID": ""}, "templateID"),
        ({"templateID": None}, "templateID"),
        ({"autoResume": {}}, "autoResume.enabled"),
    ],
)
async def test_wrong_fields_are_named(server: Server, fields: Any, word: str) -> None:
    answer = await server.request("POST", "/v2/sandboxes", {"templateID": "base"} | fields)
    assert is_error(answer, 400, word)


async def test_private_traffic_needs_a_secure_sandbox(server: Server) -> None:
    body = {"templateID": "base", "network": {"allowPublicTraffic": False}}
    assert is_error(await server.request("POST", "/sandboxes", body), 400, "secure")


async def test_unknown_template(server: Server) -> None:
    assert is_error(await server.request("POST", "/v2/sandboxes", {"templateID": "nix"}), 404, "nix")


@pytest.mark.parametrize("generation", ["", "/v2"])
async def test_pause_and_connect(server: Server, generation: str) -> None:
    sandbox_id = await server.create()
    path = f"/sandboxes/{sandbox_id}"
    connect = generation + path + "/connect"
    assert (await server.request("POST", connect, {"timeout": 60})).status == 200
    assert (await server.request("POST", path + "/pause", {"requireHealthyGuest": True})).status == 204
    info = await server.request("GET", path)
    assert info.body["state"] == "paused"
    assert info.body["pauseMode"] == "full"
    assert is_error(await server.request("POST", path + "/pause"), 409)
    assert is_error(await server.request("POST", path + "/fork"), 409)
    for route, body in (("/timeout", {"timeout": 9}), ("/refreshes", {}), ("/snapshots", {})):
        assert is_error(await server.request("POST", path + route, body), 404, "resume it first")
    resumed = await server.request("POST", connect, {"timeout": 60})
    assert resumed.status == 201
    assert resumed.body["sandboxID"] == sandbox_id


async def test_connect_v1_needs_a_timeout_and_v2_does_not(server: Server) -> None:
    sandbox_id = await server.create()
    assert is_error(await server.request("POST", f"/sandboxes/{sandbox_id}/connect"), 400, "timeout")
    assert (await server.request("POST", f"/v2/sandboxes/{sandbox_id}/connect")).status == 200


async def test_resume(server: Server) -> None:
    sandbox_id = await server.create()
    path = f"/sandboxes/{sandbox_id}"
    assert is_error(await server.request("POST", path + "/resume"), 409)
    assert (await server.request("POST", path + "/pause", {})).status == 204
    assert (await server.request("POST", path + "/resume", {"autoPause": False})).status == 201
    assert (await server.request("GET", path)).body["lifecycle"]["onTimeout"] == "kill"


@pytest.mark.parametrize(
    "route", ["/v2/sandboxes/{}/connect", "/sandboxes/{}/connect", "/sandboxes/{}/resume"]
)
async def test_pause_without_memory(server: Server, route: str) -> None:
    sandbox_id = await server.create()
    path = f"/sandboxes/{sandbox_id}"
    snapshot = await server.request("POST", path + "/snapshots", {"memory": False})
    assert snapshot.status == 201
    await server.create(templateID=snapshot.body["snapshotID"])
    assert (await server.request("POST", path + "/pause", {"memory": False})).status == 204
    assert is_error(await server.request("POST", path + "/pause", {"memory": False}), 409)
    assert (await server.request("GET", path)).body["pauseMode"] == "filesystem"
    listed = await server.request("GET", "/v2/sandboxes?state=paused")
    assert {item["sandboxID"]: item["pauseMode"] for item in listed.body}[sandbox_id] == "filesystem"
    for memory in (None, False):
        resumed = await server.request("POST", route.format(sandbox_id), {"timeout": 60, "memory": memory})
        assert resumed.status == 201
        assert resumed.body["envdAccessToken"]
        info = await server.request("GET", path)
        assert not {"pauseMode", "envdUnresponsiveAtPause"} & info.body.keys()
        assert (await server.request("POST", path + "/pause", {"memory": True})).status == 204
        assert (await server.request("GET", path)).body["pauseMode"] == "full"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"autoPause": False}, "needs autoPause"),
        ({"autoPause": True, "autoResume": {"enabled": True}}, "autoResume"),
    ],
)
async def test_a_deadline_without_memory_has_conditions(
    server: Server, fields: dict[str, Any], word: str
) -> None:
    body = {"templateID": "base", "autoPauseMemory": False}
    for path in ("/sandboxes", "/v2/sandboxes"):
        assert is_error(await server.request("POST", path, body | fields), 400, "autoPauseMemory", word)
    await server.create(autoPauseMemory=False, autoPause=True, autoResume={"enabled": False})


async def test_timeout_may_shorten_and_refresh_may_not(server: Server) -> None:
    path = f"/sandboxes/{await server.create(timeout=200)}"

    async def remaining() -> float:
        info = await server.request("GET", path)
        return (datetime.fromisoformat(info.body["endAt"]) - datetime.now(UTC)).total_seconds()

    assert (await server.request("POST", path + "/timeout", {"timeout": 100})).status == 204
    assert 90 < await remaining() <= 100
    assert (await server.request("POST", path + "/refreshes", {"duration": 50})).status == 204
    assert 80 < await remaining() <= 100
    assert (await server.request("POST", path + "/refreshes")).status == 204
    assert (await server.request("POST", path + "/refreshes", {"duration": 150})).status == 204
    assert 140 < await remaining() <= 150


@pytest.mark.parametrize("route", ["timeout", "refreshes", "connect", "resume", "fork"])
@pytest.mark.parametrize("value", [0, -5, 10**9])
async def test_bad_durations(server: Server, route: str, value: int) -> None:
    field = "duration" if route == "refreshes" else "timeout"
    answer = await server.request("POST", f"/sandboxes/{UNKNOWN}/{route}", {field: value})
    assert is_error(answer, 400, field)


async def test_fork(server: Server) -> None:
    sandbox_id = await server.create()
    answer = await server.request("POST", f"/sandboxes/{sandbox_id}/fork", {"count": 3, "timeout": 50})
    assert answer.status == 201
    ids = {result["sandbox"]["sandboxID"] for result in answer.body}
    assert len(ids) == 3
    assert sandbox_id not in ids
    assert len((await server.request("POST", f"/sandboxes/{sandbox_id}/fork")).body) == 1


async def test_fork_answers_for_each_child(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can't be started keeps no other from living."""
    sandbox_id = await server.create()
    load, loads = FakeBareVmm.load, 0

    async def fail_once(vmm: FakeBareVmm, capture: Capture) -> Instance:
        nonlocal loads
        loads += 1
        if loads == 1:
            raise RuntimeFailure("no memory")
        return await load(vmm, capture)

    monkeypatch.setattr(FakeBareVmm, "load", fail_once)
    answer = await server.request("POST", f"/sandboxes/{sandbox_id}/fork", {"count": 3})
    assert answer.status == 201
    (failed,) = [result["error"] for result in answer.body if result.get("error")]
    assert (failed["code"], failed["message"]) == (500, "no memory")
    living = [result["sandbox"]["sandboxID"] for result in answer.body if result.get("sandbox")]
    assert len(living) == 2
    for child in living:
        assert (await server.request("GET", f"/sandboxes/{child}")).body["state"] == "running"


async def test_rollback(server: Server) -> None:
    path = f"/sandboxes/{await server.create()}"
    before = (await server.request("GET", path)).body
    snapshot = (await server.request("POST", path + "/snapshots", {"name": "ready"})).body["snapshotID"]
    for name in (snapshot, "ready", "default/ready:default"):
        assert (await server.request("POST", path + "/rollback", {"snapshotID": name})).status == 204
    assert (await server.request("GET", path)).body == before
    assert is_error(await server.request("POST", path + "/rollback", {}), 400, "snapshotID")
    assert is_error(await server.request("POST", path + "/rollback", {"snapshotID": "base"}), 400, "base")
    assert is_error(await server.request("POST", path + "/rollback", {"snapshotID": "nix"}), 404, "nix")
    await server.request("POST", path + "/pause")
    assert is_error(await server.request("POST", path + "/rollback", {"snapshotID": "ready"}), 409, "resume")


@pytest.mark.parametrize("count", [0, -1, 4])
async def test_fork_names_its_limit(server: Server, count: int) -> None:
    sandbox_id = await server.create()
    answer = await server.request("POST", f"/sandboxes/{sandbox_id}/fork", {"count": count})
    assert is_error(answer, 400, "count", "3")


async def test_network_update(server: Server) -> None:
    path = f"/sandboxes/{await server.create()}/network"
    assert (await server.request("PUT", path, {})).status == 204
    assert (await server.request("PUT", path, {"allow_internet_access": True, "allowOut": []})).status == 204
    assert is_error(
        await server.request("PUT", path, {"allow_internet_access": False}), 400, "allow_internet"
    )
    assert is_error(await server.request("PUT", path, {"allowOut": ["1.1.1.1"]}), 400, "allowOut")
    unknown = await server.request("PUT", f"/sandboxes/{UNKNOWN}/network", {"allowOut": ["1.1.1.1"]})
    assert is_error(unknown, 404, UNKNOWN)


async def test_kill_works_running_and_paused_and_once(server: Server) -> None:
    for paused in (False, True):
        path = f"/sandboxes/{await server.create()}"
        if paused:
            await server.request("POST", path + "/pause")
        assert (await server.request("DELETE", path)).status == 204
        assert is_error(await server.request("DELETE", path), 404)


@pytest.mark.parametrize(
    "sandbox_id", [UNKNOWN, "a%2Fb", "..%2f..", "%00", "X", "ä".encode().hex(), "%C3%A4"]
)
@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/pause", None),
        ("POST", "/connect", {"timeout": 9}),
        ("POST", "/resume", None),
        ("POST", "/timeout", {"timeout": 9}),
        ("POST", "/refreshes", None),
        ("POST", "/fork", None),
        ("POST", "/snapshots", None),
        ("POST", "/rollback", {"snapshotID": "x"}),
        ("PUT", "/network", {}),
    ],
)
async def test_unknown_and_odd_ids(
    server: Server, sandbox_id: str, method: str, route: str, body: Any
) -> None:
    assert is_error(await server.request(method, f"/sandboxes/{sandbox_id}{route}", body), 404, "sandbox")
