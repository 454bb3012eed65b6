"""Fields of the E2B contract that this server doesn't serve yet: refused by name, never silently ignored."""

from __future__ import annotations

from typing import Any

from aenv.api.models import Network, NetworkUpdate, NewSandbox
from aenv.errors import InvalidRequest


def _refuse(field: str, value: object, *harmless: object) -> None:
    """Raise if `value` asks for something. None and empty values don't, nor do the `harmless` ones."""
    if value is None or value in ([], {}, "") or value in harmless:
        return
    raise InvalidRequest(f"{field}: not supported by this server")


def check_create(body: NewSandbox) -> None:
    """Raise `InvalidRequest` for what a create can't do."""
    _refuse("allow_internet_access: false", body.allow_internet_access, True)
    _refuse("mcp", body.mcp)
    _refuse("iam", body.iam, {"tokens": {}}, {"tokens": None})
    _refuse("volumeMounts", body.volume_mounts)
    if body.network is not None:
        _check_egress(body.network, "network.")


def check_network_update(body: NetworkUpdate) -> None:
    """Raise `InvalidRequest` for an update that would change anything."""
    _refuse("allow_internet_access: false", body.allow_internet_access, True)
    _refuse("allowPublicTraffic", body.allow_public_traffic)
    _refuse("maskRequestHost", body.mask_request_host)
    _refuse("httpsPorts", body.https_ports)
    _check_egress(body, "")


def _check_egress(network: Network, prefix: str) -> None:
    fields: dict[str, Any] = {
        "allowOut": network.allow_out,
        "denyOut": network.deny_out,
        "dnsServers": network.dns_servers,
        "egressProxy": network.egress_proxy,
        "rules": network.rules,
    }
    for name, value in fields.items():
        _refuse(prefix + name, value)
