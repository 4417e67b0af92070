"""The key of a request by default: the address of its client. Knows no limiter."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["client_address"]

_REMEMBERED = 1024  # addresses; a client that uses more of them merely costs the time to read each
_NETWORK = 64  # bits: a provider gives all the rest to one customer


def client_address(scope: Mapping[str, Any]) -> str:
    """Return the client's address, as the server saw it: ``"192.0.2.7"``, or the network ``"2001:db8:1:2::/64"`` for IPv6.

    A customer of a provider has 2**64 addresses of IPv6 or more, so a limit for each of them would not be a limit. An IPv4 address mapped
    to IPv6 counts as the IPv4 address. Headers of proxies are not read, because any client can send them. Without an address, as behind a
    Unix socket, the key is ``""``.
    """
    client = scope.get("client")
    host: object = client[0] if client else ""
    if not isinstance(host, str):
        return ""
    return _network(host) if ":" in host else host


@lru_cache(_REMEMBERED)
def _network(host: str) -> str:
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback or address.is_link_local:
        return host
    return str(IPv6Network((int(address), _NETWORK), strict=False))
