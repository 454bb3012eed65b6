"""nftables rules of the host and of a slot's namespace.

The host's rules match this server's links by the prefix of their names, so a new slot changes nothing on the
host. A slot's own rules are loaded once, when it is made. Each set is one transaction.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network, collapse_addresses

from aenv.errors import HostNotReady
from aenv.network.base import GUEST_ADDRESS, TAP_NAME
from aenv.network.plan import SlotPlan

UPLINK = "up0"
"""Name of the veth's end inside a namespace."""

MAX_CONNECTIONS = 4096
"""Connections that one guest may have to the outside at a time. The host's table of tracked connections is
shared by all guests and the host itself (262,144 by default): one guest fills it in half a minute."""

_NEVER_ROUTED = tuple(
    IPv4Network(text) for text in ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4")
)

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def host_rules(plan: SlotPlan, denied: Iterable[IPv4Network]) -> str:
    """Rules for traffic between the slots and everything else; replaces an earlier table of the same tag.

    Guests reach the outside except `denied` and the slot ranges; they reach this host only to answer it, and
    not through a port it publishes by DNAT either. Nothing reaches a guest unasked but the host.
    """
    slots = f'"{plan.veth_prefix}*"'
    ranges = (*denied, *_NEVER_ROUTED, plan.slot_network, plan.veth_network)
    forbidden = ", ".join(str(network) for network in collapse_addresses(ranges))
    return f"""
table inet {plan.table}
delete table inet {plan.table}
table inet {plan.table} {{
  chain prerouting {{
    type filter hook prerouting priority raw; policy accept;
    iifname {slots} jump check_source
  }}
  chain check_source {{
    meta nfproto != ipv4 drop
    ip saddr != {{ {plan.slot_network}, {plan.veth_network} }} drop
    fib saddr . iif oif missing drop
  }}
  chain input {{
    type filter hook input priority filter - 5; policy accept;
    iifname {slots} jump input_from_slot
  }}
  chain input_from_slot {{
    ct state established ct direction reply accept
    ct state related meta l4proto icmp accept
    drop
  }}
  chain forward {{
    type filter hook forward priority filter - 5; policy accept;
    iifname {slots} jump forward_from_slot
    oifname {slots} jump forward_to_slot
  }}
  chain forward_from_slot {{
    ct state invalid drop
    ct direction original ct status dnat drop
    ip daddr {{ {forbidden} }} drop
    accept
  }}
  chain forward_to_slot {{
    ct state established,related accept
    drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    iifname {slots} masquerade
  }}
}}
"""


def slot_rules(plan: SlotPlan, index: int) -> str:
    """Rules inside a slot's namespace: address translation both ways, and only the guest's own source.

    The namespace itself answers nobody: the guest can't use it as a host. It bounds the guest's connections.
    """
    address = plan.host_address(index)
    return f"""
table ip aenv {{
  chain source {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{TAP_NAME}" ip saddr != {GUEST_ADDRESS} drop
  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname "{UPLINK}" ip saddr {plan.veth_host(index)} ip daddr {address} dnat to {GUEST_ADDRESS}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{UPLINK}" ip saddr {GUEST_ADDRESS} snat to {address}
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    ct state invalid drop
    iifname "{TAP_NAME}" oifname "{UPLINK}" ct state new ct count over {MAX_CONNECTIONS} drop
    iifname "{TAP_NAME}" oifname "{UPLINK}" accept
    iifname "{UPLINK}" oifname "{TAP_NAME}" ct state established,related accept
    iifname "{UPLINK}" oifname "{TAP_NAME}" ct status dnat accept
  }}
}}
"""


def remove_host_rules(plan: SlotPlan) -> None:
    """Remove the host's table; missing is fine. Raises HostNotReady if nft fails."""
    load(f"table inet {plan.table}\ndelete table inet {plan.table}\n")


def nft_path() -> str:
    """Where `nft` is. Raises HostNotReady if it is not installed."""
    found = shutil.which("nft", path=os.environ.get("PATH", os.defpath) + os.pathsep + _SBIN)
    if found is None:
        raise HostNotReady("nft is missing: apt-get install nftables")
    return found


def load(rules: str) -> None:
    """Apply rules in one transaction, in the namespace of the calling thread. Raises HostNotReady."""
    result = subprocess.run([nft_path(), "-f", "-"], input=rules, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = result.stderr.strip().splitlines()
        raise HostNotReady(f"nft refused the firewall rules: {reason[0] if reason else result.returncode}")
