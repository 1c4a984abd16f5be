"""Addresses of proxies and ``NO_PROXY``: one reader for every transport, and no secret in any message."""

import base64
import traceback
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from helpers.tables import each_row
from helpers.transports import class_of, each_transport
from rbim import InvalidRequest, NotSent, Request
from rbim.cli.doctor import doctor
from rbim.testing.conformance.server import RawServer, refusing_port, reply
from rbim.transports._shared.proxies import given_proxy, proxy_address, proxy_for


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)


@each_row(
    "address, normal",
    [
        ("host", "http://host:80"),
        ("host:3128", "http://host:3128"),
        ("HTTP://Host.Example:3128/", "http://host.example:3128"),
        ("https://host", "https://host:443"),
        ("socks5://host", "socks5://host:1080"),
        ("socks5h://u:p@host:9", "socks5h://u:p@host:9"),
        ("http://[::1]:3128", "http://[::1]:3128"),
        ("http://代理.example", "http://xn--mnq481g.example:80"),
        ("user:secret@host", "http://user:secret@host:80"),
        ("http://user@host", "http://user@host:80"),
        ("http://:secret@host", "http://:secret@host:80"),
        ("http://user:@host", "http://user:@host:80"),
        ("http://@host", "http://host:80"),
        ("http://user:a#b@host", "http://user:a%23b@host:80"),
        ("http://user:a@b@host", "http://user:a%40b@host:80"),
        ("http://user:a/b?c@host", "http://user:a%2Fb%3Fc@host:80"),
        ("http://user:a:b@host", "http://user:a%3Ab@host:80"),
        ("http://user:a b@host", "http://user:a%20b@host:80"),
        ("http://us%40er:a%23b@host", "http://us%40er:a%23b@host:80"),
        ("http://user:100%@host", "http://user:100%25@host:80"),
        ("http://user:%zz@host", "http://user:%25zz@host:80"),
        ("http://user:密@host", "http://user:%E5%AF%86@host:80"),
    ],
)
def test_an_address_is_read_whatever_is_in_the_password(address, normal):
    assert proxy_address(address) == normal
    assert proxy_address(normal) == normal


WRONG = [
    "",
    "http://",
    "http://user:secret@",
    "http://host:port",
    "http://host:0",
    "http://host:65536",
    "http://host/path",
    "http://host?secret",
    "http://host#secret",
    "http://a b",
    "http://[::1",
    "http://[1.2.3.4]",
    "http://::1",
    "socks4://host",
    "ftp://secret@host",
    "secret-of-mine://host",
    "http://" + "密" * 100,
]


@each_row("address", WRONG)
def test_any_other_address_is_refused_without_showing_it(address):
    with pytest.raises(InvalidRequest) as caught:
        given_proxy(address)
    assert str(caught.value).startswith("proxy: not the address of a proxy: use http://user:password@host:port")
    assert caught.value.field == "proxy"
    shown = "".join(traceback.TracebackException.from_exception(caught.value).format())
    assert "secret" not in shown.replace("test_any_other_address_is_refused_without_showing_it", "")


# ------------------------------------------------------------------------------------- the environment


@each_row(
    "variables, origin, proxy",
    [
        ({}, "http://a", None),
        ({"http_proxy": "p"}, "http://a", "http://p:80"),
        ({"http_proxy": "p"}, "https://a", None),
        ({"HTTPS_PROXY": "p"}, "https://a", "http://p:80"),
        ({"HTTP_PROXY": "upper", "http_proxy": "lower"}, "http://a", "http://lower:80"),
        ({"HTTP_PROXY": "upper", "http_proxy": ""}, "http://a", None),
        ({"HTTP_PROXY": "upper", "http_proxy": "", "all_proxy": "p"}, "http://a", "http://p:80"),
        ({"ALL_PROXY": "p"}, "http://a", "http://p:80"),
        ({"ALL_PROXY": "socks5://p", "https_proxy": "q"}, "https://a", "http://q:80"),
        ({"ALL_PROXY": "socks5://p", "https_proxy": "q"}, "http://a", "socks5://p:1080"),
        ({"HTTP_PROXY": "p", "REQUEST_METHOD": "GET"}, "http://a", None),
        ({"http_proxy": "p", "REQUEST_METHOD": "GET"}, "http://a", "http://p:80"),
        ({"HTTP_PROXY": "p", "NO_PROXY": "a"}, "http://a", None),
        ({"HTTP_PROXY": "p", "NO_PROXY": "a", "no_proxy": "b"}, "http://a", "http://p:80"),
        ({"HTTP_PROXY": "p", "NO_PROXY": "a", "no_proxy": ""}, "http://a", "http://p:80"),
    ],
)
def test_a_variable_in_lower_case_wins_and_one_for_the_scheme(variables, origin, proxy, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(origin, None, trust_env=True) == proxy
    assert proxy_for(origin, None, trust_env=False) is None
    assert proxy_for(origin, "given", trust_env=True) == "http://given:80"


@each_row(
    "listed, origin, direct",
    [
        ("", "http://a.example", False),
        ("*", "http://a.example", True),
        ("b, *", "http://a.example", True),
        ("a.example", "http://a.example", True),
        ("A.EXAMPLE.", "http://a.example", True),
        ("a.example", "http://A.example.:8883", True),
        ("example", "http://a.example", True),
        (".example", "http://a.example", True),
        ("*.example", "http://a.example", True),
        (".a.example", "http://a.example", True),
        ("xample", "http://a.example", False),
        ("b.example", "http://a.example", False),
        ("b,a.example", "http://a.example", True),
        ("b a.example", "http://a.example", True),
        ("b ,\ta.example\n", "http://a.example", True),
        (",,", "http://a.example", False),
        (".", "http://a.example", False),
        ("a.example:8883", "http://a.example:8883", True),
        ("a.example:8883", "http://a.example", False),
        ("a.example:80", "http://a.example", True),
        ("a.example:443", "https://a.example", True),
        (".example:443", "https://a.example", True),
        ("a.example:x", "http://a.example", False),
        ("127.0.0.1", "http://127.0.0.1:8883", True),
        ("127.0.0.1:8883", "http://127.0.0.1:8883", True),
        ("127.0.0.1:1", "http://127.0.0.1:8883", False),
        ("127.0.0.0/8", "http://127.0.0.1:8883", True),
        ("127.0.0.1/8", "http://127.9.9.9", True),
        ("10.0.0.0/8", "http://127.0.0.1", False),
        ("10.0.0.0/99", "http://10.0.0.1", False),
        ("0.0.0.0/0", "http://10.0.0.1", True),
        ("0.0.0.0/0", "http://[::1]", False),
        ("0.0.0.0/0", "http://a.example", False),
        ("0.1", "http://10.0.0.1", False),
        (".0.0.1", "http://10.0.0.1", False),
        ("::1", "http://[::1]:8883", True),
        ("[::1]", "http://[::1]:8883", True),
        ("[::1]:8883", "http://[::1]:8883", True),
        ("[::1]:1", "http://[::1]:8883", False),
        ("0:0:0:0:0:0:0:1", "http://[::1]:8883", True),
        ("fd00::/8", "http://[fd12::1]:8883", True),
        ("[fd00::]/8", "http://[fd12::1]:8883", True),
        ("fd00::/8", "http://[fe80::1]", False),
        ("[::1", "http://[::1]", True),
    ],
)
def test_no_proxy_is_read_as_curl_and_the_standard_library_read_it(listed, origin, direct, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "p")
    monkeypatch.setenv("no_proxy", listed)
    assert (proxy_for(origin, None, trust_env=True) is None) is direct


# ----------------------------------------------------------------------------------- every transport


async def sent(name, url, **options):
    """Send one request over a new transport. Raises NotSent."""
    async with class_of(name)(**options) as transport:
        return await transport.send(Request(method="GET", origin=url, path="/"), timeout=5)


def told(error):
    """Return all that is shown of an error."""
    return "".join(traceback.TracebackException.from_exception(error).format())


@each_transport()
async def test_each_transport_asks_the_proxy_with_the_same_credentials(name, monkeypatch):
    with RawServer(reply(b"{}")) as proxy:
        address = proxy.url().replace("http://", "http://us er:a#b/c@d:é密%25@")
        monkeypatch.setenv("HTTP_PROXY", address)
        assert (await sent(name, "http://platform.example")).status == 200
        await sent(name, "http://platform.example", proxy=address, trust_env=False)
    wanted = f"Basic {base64.b64encode('us er:a#b/c@d:é密%'.encode()).decode()}"
    assert [seen.header("Proxy-Authorization") for seen in proxy.requests] == [wanted] * 2


@each_transport()
async def test_each_transport_obeys_no_proxy(name, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
    with RawServer(reply(b"{}")) as server:
        assert (await sent(name, server.url())).status == 200


@each_transport()
async def test_each_transport_refuses_the_same_addresses_with_the_same_words(name, monkeypatch):
    with pytest.raises(InvalidRequest, match=r"^proxy: not the address of a proxy: use http"):
        class_of(name)(proxy="http://user:QXQXQX@")
    monkeypatch.setenv("ALL_PROXY", "http://user:QXQXQX@")
    with pytest.raises(NotSent, match="ALL_PROXY: not the address of a proxy: use http") as caught:
        await sent(name, "http://platform.example")
    assert "QX" not in told(caught.value)


RARE = "QZJW"  # in no message
SECRETS = st.text(st.sampled_from(RARE + "qxzj#@/:%?&= []\\'\"é密"), min_size=6, max_size=20)


@each_transport()
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=SECRETS, form=st.sampled_from(["as it is", "escaped", "no host", "wrong port"]), secure=st.booleans())
@example(secret="QXZJ#WQXZ@JWQX:ZJWQ/XZJW", form="as it is", secure=True)
@example(secret="QXZJ#WQXZ@JWQX:ZJWQ/XZJW", form="no host", secure=False)
async def test_no_piece_of_a_password_is_in_any_message(name, secret, form, secure):
    with refusing_port() as port:
        written = quote(secret, safe="") if form == "escaped" else secret
        host = {"no host": "", "wrong port": "127.0.0.1:99999"}.get(form, f"127.0.0.1:{port}")
        with pytest.raises((NotSent, InvalidRequest)) as caught:
            await sent(name, f"http{'s' * secure}://platform.example", proxy=f"http://user:{written}@{host}")
    shown = told(caught.value) + repr(caught.value)
    pieces = {each[at : at + 4] for each in (secret, written) for at in range(len(each) - 3)}
    assert [piece for piece in pieces if piece in shown and set(piece) & set(RARE)] == []


def test_doctor_tells_of_a_wrong_proxy(monkeypatch, capsys):
    monkeypatch.setenv("RBIM_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://user:QXQXQX@")
    assert doctor(timeout=1) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "HTTP_PROXY: not the address of a proxy" in shown
    assert "QX" not in shown
