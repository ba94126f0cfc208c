"""Which addresses rows may be sent to. Pure: others resolve the names, and the addresses are checked here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from strandline.core.errors import ConfigError, RefusedError

IpAddress = IPv4Address | IPv6Address
SETTING = "forward.allow"

_HOST = re.compile(r"\*|(?:\*\.)?[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_ADDRESS_LIKE = re.compile(r"[0-9.]+(?:/.*)?|.*:.*|.*/.*")

_NAT64 = IPv6Network("64:ff9b::/96")
# IPv4 inside IPv6 in its old notation, NAT64 of a network's own, and site-local: all lead to private places, although
# `is_global` of some versions of Python says otherwise.
_NOT_PUBLIC = (IPv6Network("::/96"), IPv6Network("64:ff9b:1::/48"), IPv6Network("fec0::/10"))


@dataclass(frozen=True, slots=True)
class AllowList:
    """`forward.allow`, parsed."""

    hosts: tuple[str, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def permits(self, host: str, address: IpAddress) -> bool:
        """Whether rows may be sent to this address, to which this name resolved. A name never permits a private
        address: the owner of its DNS could point it anywhere."""
        plain = plain_address(address)
        if any(plain in network for network in self.networks if network.version == plain.version):
            return True
        named = not (self.hosts or self.networks) or any(_matches(pattern, host) for pattern in self.hosts)
        return named and is_public(plain)


class AddressRefused(RefusedError):
    """The setting does not permit the address."""


def parse_allow(entries: Sequence[str]) -> AllowList:
    hosts, networks = [], []
    for entry in entries:
        text = entry.strip().lower().rstrip(".")
        try:
            networks.append(ipaddress.ip_network(text))
            continue
        except ValueError:
            ascii_text = _ascii(text)
        if _ADDRESS_LIKE.fullmatch(text) or not _HOST.fullmatch(ascii_text):
            raise ConfigError(
                f"{SETTING}: {entry!r} is neither a host nor an address nor a network",
                hint="Without scheme, port or path: `collector.example.com`, `*.example.com`, `10.1.2.3`, "
                "`10.1.0.0/16` (no bits set behind the network's), or `*` for every public address.",
            )
        hosts.append(ascii_text)
    return AllowList(tuple(hosts), tuple(networks))


def _ascii(host: str) -> str:
    star, rest = ("*.", host[2:]) if host.startswith("*.") else ("", host)
    try:
        return star + rest.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def _matches(pattern: str, host: str) -> bool:
    name = host.lower().rstrip(".")
    if pattern.startswith("*."):
        return name.endswith(pattern[1:]) and len(name) > len(pattern) - 1
    return pattern in ("*", name)


def plain_address(address: IpAddress) -> IpAddress:
    """An IPv4 address in IPv6 notation is that IPv4 address: the kernel connects to it."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_public(address: IpAddress) -> bool:
    plain = plain_address(address)
    if isinstance(plain, IPv6Address):
        if any(plain in network for network in _NOT_PUBLIC):
            return False
        if plain.sixtofour is not None and not is_public(plain.sixtofour):
            return False
        if plain in _NAT64:  # a gateway forwards to the IPv4 address in its last bits
            return is_public(IPv4Address(int(plain) & 0xFFFF_FFFF))
    return plain.is_global and not plain.is_multicast


def literal(host: str) -> IpAddress | None:
    """The address that a host already is; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def refusal(host: str, addresses: Sequence[IpAddress]) -> AddressRefused:
    plain = [plain_address(a) for a in addresses]
    names = ", ".join(dict.fromkeys(str(a) for a in plain))
    private = [a for a in plain if not is_public(a)]
    where = host if literal(host) is not None else f"{host} ({names})"
    if private:
        return AddressRefused(
            f"rows are not sent to {where}: it is not a public address",
            hint=f'Allow the address or its network in the settings: {SETTING} = ["{private[0]}"].',
        )
    return AddressRefused(
        f"rows are not sent to {where}: {SETTING} does not list it",
        hint=f'Add the host, the address or its network to the setting {SETTING}: ["{host}"].',
    )
