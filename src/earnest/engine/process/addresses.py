"""Which addresses a request that somebody else has named may go to.

Everything that is not the public internet is refused unless the deployment allows it: the machine
itself, private and shared networks, link-local (with the clouds' metadata), multicast, reserved and
documentation ranges; and addresses that carry another one inside (mapped, NAT64, 6to4, Teredo) are
judged by that one as well. The list is ours: what Python calls global differs between its releases.
Source: the IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and its updates).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from earnest.domain.errors import EarnestError, SettingInvalid

VARIABLE = "EARNEST_ALLOW_PRIVATE_ADDRESSES"

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC = [
    ipaddress.ip_network(text)
    for text in """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
    224.0.0.0/4 240.0.0.0/4 168.63.129.16/32
    ::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001:2::/48 2001:db8::/32 2001:10::/28
    3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8
    """.split()
]
# Also where private addresses are allowed as a whole: what a cloud tells there are keys to it.
_METADATA = [
    ipaddress.ip_network(text)
    for text in "169.254.0.0/16 168.63.129.16/32 100.100.100.200/32 192.0.0.192/32 "
    "fd00:ec2::254/128 fe80::/10".split()
]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(EarnestError):
    """The address may not be called from here."""

    code, status = "address_refused", 400


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """`all_private`: whatever is private may be called, but for metadata; `networks`: these may be
    called, whatever they are."""

    all_private: bool = False
    networks: Sequence[Network] = ()

    @staticmethod
    def from_environment() -> AddressPolicy:
        """What EARNEST_ALLOW_PRIVATE_ADDRESSES says: `off` (which is meant without it), `on`, or
        networks such as `10.1.0.0/16,::1/128`. Raises `SettingInvalid`."""
        said = (os.environ.get(VARIABLE) or "off").strip()
        if said in ("on", "off"):
            return AddressPolicy(said == "on")
        try:
            return AddressPolicy(
                networks=[ipaddress.ip_network(part.strip()) for part in said.split(",")]
            )
        except ValueError as error:
            raise SettingInvalid(
                f"{VARIABLE} is on, off, or networks separated by commas such as 10.1.0.0/16: "
                f"{error}"
            ) from error

    @property
    def allows_some(self) -> bool:
        return self.all_private or bool(self.networks)

    def allows(self, address: Address) -> bool:
        """Whether a request may go there: to the address, and to the one that it carries."""
        return all(self._allows_one(one) for one in _faces(address))

    def _allows_one(self, address: Address) -> bool:
        if _is_in(address, self.networks):
            return True
        if _is_in(address, _METADATA):
            return False
        return self.all_private or not _is_in(address, _NOT_PUBLIC)


def read_address(text: str) -> Address:
    """Raises `AddressRefused` for what is no address; a zone (`%eth0`) does not count."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError as error:
        raise AddressRefused("the name was not resolved to an address") from error


def _faces(address: Address) -> Iterator[Address]:
    if not isinstance(address, IPv6Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped  # the same one, written otherwise
        return
    yield address
    if address in _NAT64:
        yield IPv4Address(address.packed[-4:])
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == one.version and address in one for one in networks)
