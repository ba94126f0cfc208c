"""Which addresses `forward` may send to, whatever name or spelling leads to them."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from strandline.core.errors import ConfigError, UsageError
from strandline.core.settings.lake_config import ForwardSettings
from strandline.deliver.sink import SinkContext
from strandline.deliver.sinks.forward.address import is_public, parse_allow, refusal
from strandline.deliver.sinks.forward.sink import KIND


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.2.3", "240.0.0.1",
        "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1",
        "2002:7f00:1::", "2002:a00:1::1",
    ],
)  # fmt: skip
def test_an_address_that_leads_into_a_network_of_ones_own_is_refused_unless_it_is_allowed(address: str) -> None:
    found = ip_address(address)
    assert not is_public(found)
    assert not parse_allow([]).permits("collector.example.com", found)
    assert not parse_allow(["collector.example.com", "*"]).permits("collector.example.com", found)
    assert "forward.allow" in (refusal("collector.example.com", [found]).hint or "")


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_fine_without_a_list(address: str) -> None:
    assert is_public(ip_address(address))
    assert parse_allow([]).permits("anything.example", ip_address(address))


@pytest.mark.parametrize(
    ("allow", "address", "permitted"),
    [
        ("127.0.0.0/8", "127.0.0.1", True),
        ("127.0.0.0/8", "::ffff:127.0.0.1", True),
        ("127.0.0.0/8", "::1", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
        ("10.1.0.0/16", "10.1.255.1", True),
        ("10.1.0.0/16", "10.2.0.1", False),
        ("fd00::/8", "fd12::1", True),
        ("8.8.8.0/24", "8.8.8.8", True),
        ("8.8.8.0/24", "8.8.9.8", False),
        ("0.0.0.0/0", "127.0.0.1", True),
    ],
)
def test_networks_open_exactly_what_they_cover_whatever_the_name(allow: str, address: str, permitted: bool) -> None:
    assert parse_allow([allow]).permits("some.name", ip_address(address)) is permitted


@pytest.mark.parametrize(
    ("allow", "host", "permitted"),
    [
        ("collector.example.com", "collector.example.com", True),
        ("Collector.Example.com.", "COLLECTOR.example.COM.", True),
        ("collector.example.com", "evil-collector.example.com", False),
        ("collector.example.com", "collector.example.com.evil.org", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "notexample.com", False),
        ("*", "anything.at.all", True),
        ("münchen.example", "xn--mnchen-3ya.example", True),
    ],
)
def test_names_open_public_addresses_and_no_others(allow: str, host: str, permitted: bool) -> None:
    parsed = parse_allow([allow])
    assert parsed.permits(host, ip_address("8.8.8.8")) is permitted
    assert not parsed.permits(host, ip_address("10.0.0.1"))


@pytest.mark.parametrize(
    "entry",
    ["", "10.0.0.1/8", "http://x", "host:8080", "a b", "10.0.0.0/33", "*.*.com", "a/b", "300.1.1.1", "ex*mple.com"],
)
def test_an_entry_that_means_nothing_is_refused_by_name(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"forward\.allow"):
        parse_allow([entry])


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.7", "169.254.169.254"])
def test_a_url_with_a_private_address_is_refused_before_anything_is_stored(host: str) -> None:
    with pytest.raises(UsageError, match="not a public address") as refused:
        KIND.open(SinkContext(Path(), "d", 1, {"url": f"http://{host}/rows"}))
    assert "forward.allow" in (refused.value.hint or "")
    allowed = ForwardSettings(allow=["0.0.0.0/0", "::/0"])
    KIND.open(SinkContext(Path(), "d", 1, {"url": f"http://{host}/rows"}, settings=allowed))
