"""The guard of local servers: which hosts, origins and sites it accepts; and the smaller checks beside it."""

import pytest

from helpers.tables import each_row
from rbim._support.local_server import LocalServerGuard, is_json, is_loopback_url

ARRIVED = ("192.0.2.7", 8883)


def refusal(*headers, server=ARRIVED, **options):
    pairs = [(name.lower().encode(), text.encode("latin-1")) for name, text in headers]
    return LocalServerGuard(**options).refusal({"type": "http", "headers": pairs, "server": server})


OWN = """
    localhost LocalHost:8883 localhost:9000 127.0.0.1 127.0.0.1:80 127.255.3.9:8883 [::1] [::1]:8883
    [0:0:0:0:0:0:0:1]:8883 [::ffff:127.0.0.1]:8883 192.0.2.7:8883
"""
"""Hosts of the server: the loopback at any port (a tunnel may have another), and where the connection arrived."""

OTHERS = """
    evil.test evil.test:8883 localhost.evil.test 127.0.0.1.evil.test emulator.localhost localhost. 127.1 0x7f000001
    2130706433 127.0.0.01 0.0.0.0 [::]:8883 192.0.2.8:8883 128.0.0.1 user@localhost user@127.0.0.1:8883
    localhost:8883@evil.test evil.test\\@127.0.0.1 [::1%25lo] [::1%lo]:8883 [localhost] [dead]:8883 [127.0.0] ::1
    localhost: localhost:port localhost:8883/
"""
SPACED = ("localhost, evil.test", "localhost evil.test", " localhost", "localhost\n", "", "l\u043ecalhost")  # a Cyrillic o


def test_the_loopback_and_the_address_of_arrival_are_hosts_of_the_server():
    assert {host: why for host in OWN.split() if (why := refusal(("Host", host)))} == {}


@each_row("host", [*OTHERS.split(), *(each.encode().decode("latin-1") for each in SPACED)])
def test_any_other_host_is_refused_with_its_header_and_the_flag(host):
    reason = refusal(("Host", host))
    assert reason.startswith(f"Host: {host!r} is not a name of this server: ")
    assert "--allowed-host NAME" in reason
    assert reason.isprintable()


def test_exactly_one_host_is_needed():
    assert refusal().startswith("Host: (none) is not")
    assert refusal(("Host", "localhost"), ("Host", "localhost")).startswith("Host: 'localhost', 'localhost' is not")


def test_a_host_has_the_length_of_a_name_and_a_message_quotes_only_its_beginning():
    assert refusal(("Host", "a" * 262), allowed_hosts=["a" * 262]) is not None
    assert len(refusal(("Host", "a" * 100_000))) < 400


@each_row(
    "arrived, host, accepted",
    [
        (("::ffff:192.0.2.7", 1), "192.0.2.7", True),
        (("fe80::1%eth0", 1), "[fe80::1]:1", True),
        (("2001:db8::1", 1), "[2001:DB8:0::1]", True),
        (("evil.test", 1), "evil.test", False),  # some servers repeat the Host there
        (("/run/emulator.sock", None), "localhost", True),
        (("/run/emulator.sock", None), "evil.test", False),
        (None, "127.0.0.1", True),
        (None, "192.0.2.7", False),
    ],
)
def test_the_address_of_arrival_is_a_literal_address(arrived, host, accepted):
    assert (refusal(("Host", host), server=arrived) is None) == accepted


def test_further_hosts_are_allowed_by_name_or_address_on_any_port():
    allowed = {"allowed_hosts": ["Emulator", "rbim.test", "198.51.100.4", "2001:db8::5"], "bound": "build-box"}
    for host in ("emulator:8883", "EMULATOR", "rbim.test:1", "198.51.100.4", "[2001:db8::5]:8883", "Build-Box:8883"):
        assert refusal(("Host", host), **allowed) is None
    for host in ("emulator.rbim.test", "test", "build-box."):
        assert refusal(("Host", host), **allowed) is not None
    assert refusal(("Host", "0.0.0.0"), bound="0.0.0.0") is not None


@each_row("host", ["", "http://emulator", "emulator:8883", "[::1]:8883", "a b", "*", "*.test", "emulator/", "[x]"])
def test_an_allowed_host_has_no_scheme_port_or_wildcard(host):
    with pytest.raises(ValueError, match="give a name or an address, without scheme and port") as caught:
        LocalServerGuard([host])
    assert repr(host) in str(caught.value)


@each_row(
    "host, origin",
    [
        ("localhost:8883", "http://localhost:8883"),
        ("LOCALHOST:8883", "HTTP://localhost:8883"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("127.0.0.1", "https://127.0.0.1"),  # a proxy in front of the server ends TLS
        ("localhost", "https://localhost:443"),
        ("[::1]:8883", "http://[::1]:8883"),
    ],
)
def test_a_page_of_the_server_itself_may_send(host, origin):
    assert refusal(("Host", host), ("Origin", origin), ("Sec-Fetch-Site", "same-origin")) is None


FOREIGN = """
    null http://evil.test http://evil.test:8883 http://localhost http://localhost:8884 http://127.0.0.1:8883
    http://localhost:8883.evil.test http://localhost:8883@evil.test http://localhost:8883/ localhost:8883
    ftp://localhost:8883 chrome-extension://localhost:8883 file://
"""  # 127.0.0.1 is another origin than localhost, for a browser


@each_row("origin", ["", "http://localhost:8883 http://evil.test", "http://localhost:8883, http://a.test", *FOREIGN.split()])
def test_any_other_origin_is_refused(origin):
    reason = refusal(("Host", "localhost:8883"), ("Origin", origin))
    assert reason.startswith(f"Origin: {origin!r} is not a page of this server: ")


def test_two_origins_are_refused():
    origin = ("Origin", "http://localhost:8883")
    assert refusal(("Host", "localhost:8883"), origin, origin).startswith("Origin: ")


def test_the_browsers_own_answer_counts_also_without_an_origin():
    for sites in ([], ["same-origin"], ["none"]):
        assert refusal(("Host", "localhost"), *(("Sec-Fetch-Site", site) for site in sites)) is None
    for sites in (*(["same-site"], ["cross-site"], ["Same-Origin"], ["new"], [""]), ["same-origin", "cross-site"]):
        reason = refusal(("Host", "localhost"), *(("Sec-Fetch-Site", site) for site in sites))
        assert reason.startswith("Sec-Fetch-Site: "), sites


def test_json_is_one_content_type():
    right = ["application/json", "Application/JSON", "application/json;charset=utf-8", "application/json ; charset=utf-8"]
    wrong = ["", "text/plain", "text/plain;application/json", "text/plain, application/json", "application/jsonp"]
    several = ["application/json, text/plain"], ["application/json"] * 2, []
    for types, accepted in (*(([each], True) for each in right), *(([each], False) for each in wrong)):
        assert is_json({"headers": [(b"content-type", each.encode()) for each in types]}) == accepted, types
    for types in several:
        assert not is_json({"headers": [(b"content-type", each.encode()) for each in types]}), types


LOOPBACK = """
    http://localhost HTTP://LocalHost:8080/copy?a=b#c https://127.0.0.1/ http://127.9.9.9:1 http://[::1]:8080/copy
    http://[::ffff:127.0.0.1]/
"""
ELSEWHERE = """
    http://evil.test/ http://localhost.evil.test/ http://app.localhost/ http://localhost./ http://0.0.0.0/ http://[::]/
    http://192.0.2.7/ http://127.1/ http://2130706433/ http://0177.0.0.1/ http://localhost@evil.test/
    http://evil.test@localhost/ http://user:word@127.0.0.1/ http://evil.test\\@127.0.0.1/ http://127.0.0.1\\.evil.test/
    http://[::1%25lo]/ http://127.0.0.1:80:80/ http:///127.0.0.1/ http:127.0.0.1 //127.0.0.1/ ftp://127.0.0.1/
    http://localho\u017ft/
"""


def test_a_url_of_the_loopback_and_one_of_any_other_host_or_form():
    assert [url for url in LOOPBACK.split() if not is_loopback_url(url)] == []
    others = [*ELSEWHERE.split(), " http://127.0.0.1/", "http://127.0.0.1 /", "http://127.0.0.1\n.evil.test/"]
    assert [url for url in others if is_loopback_url(url)] == []
