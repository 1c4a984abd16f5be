"""What stands between a program and the platform: each kind of answer, over each transport, from programs and scripts."""

import gzip
import re
import sys
import zlib
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from helpers.processes import running
from helpers.serving import served
from helpers.sockets import free_port
from helpers.transports import TRANSPORTS, class_of
from helpers_ci.proxies import Haproxy, Nginx, Squid, needs_proxies, needs_squid
from rbim import AsyncClient, CreateGroup, GroupType, RbimError, Retry
from rbim.emulator import Emulator
from rbim.testing.conformance.server import RawServer, closing, head, reply

pytestmark = [*needs_proxies, needs_squid, pytest.mark.no_cover, pytest.mark.usefixtures("no_proxy_of_this_machine")]

TESTED = [module for module in TRANSPORTS if module != "auto"]
EACH = pytest.mark.parametrize(("module", "anyio_backend"), [(module, TRANSPORTS[module][2][0]) for module in TESTED])
DONE = b'{"statusCode":"000000","groupId":"g1"}'
GONE = b'{"statusCode":"900404","statusMsg":"\xe6\xb2\xa1\xe6\x9c\x89"}'
GUNICORN = """
def application(environ, start_response):
    raise RuntimeError("the application of an old gateway")
"""


@pytest.fixture(scope="module")
def between(tmp_path_factory):
    """Start the programs; give a function from a kind of the table to base URL and options of a transport."""
    folder = tmp_path_factory.mktemp
    with ExitStack() as stack:
        emulator = stack.enter_context(served(Emulator().asgi))
        closed = free_port()
        locations = (
            "location /denied { deny all; } location /moved { return 301 https://platform.example$request_uri; } "
            "location /small { client_max_body_size 1; proxy_pass http://service; } location /none { return 404; } "
            f"location /away {{ proxy_pass http://127.0.0.1:{closed}; }} location /login {{ return 302 /sso/login?to=1; }} "
        )
        rules = (
            "http-request deny if { path_beg /denied }\nhttp-request redirect scheme https code 308 if { path_beg /moved }"
        )
        upstream = urlsplit(emulator).port
        nginx = stack.enter_context(Nginx(folder("nginx"), upstream, server=locations).running())
        haproxy = stack.enter_context(Haproxy(folder("haproxy"), closed, frontend=rules).running())
        squid = stack.enter_context(Squid(folder("squid")).running())
        gunicorn = stack.enter_context(_gunicorn(folder("gunicorn")))
        urls = {"nginx": nginx.origin, "haproxy": haproxy.origin, "gunicorn": gunicorn}
        proxy = f"http://127.0.0.1:{squid.port}"

        @contextmanager
        def at(source):
            program, _, rest = source.partition(" ")
            if source in SCRIPTS:
                with RawServer(SCRIPTS[source]) as server:
                    yield server.url(), {}
            elif program == "squid":
                yield rest.replace("CLOSED", str(closed)), {"proxy": proxy}
            else:
                yield f"{urls[program]}{rest}", {}

        yield at


@contextmanager
def _gunicorn(folder):
    (folder / "old.py").write_text(GUNICORN)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{port}", "--chdir", str(folder), "old"]
    with running(*command, stdout=None, patience=600) as process:
        assert any("Booting worker" in line for line in process.stderr)
        yield f"http://127.0.0.1:{port}"


def encoded(body, encoding):
    return reply(body, "200 OK", f"Content-Encoding: {encoding}")


SCRIPTS = {
    "HTML with HTTP 200": reply(b"<html><title>Sign in</title></html>"),
    "text": reply(b"no healthy upstream", "503 Service Unavailable"),
    "XML": reply(b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "403 Forbidden", "Server: S3"),
    "JSON of a gateway": reply(b'{"statusCode":404,"message":"no Route matched"}', "404 Not Found", "Server: kong/3.4"),
    "an error without a body": reply(b"", "401 Unauthorized"),
    "429 with a page": reply(b"<html>slow down</html>", "429 Too Many Requests", "Retry-After: 7"),
    "451": reply(b"<html>blocked</html>", "451 Unavailable For Legal Reasons"),
    "gzip": encoded(gzip.compress(DONE, mtime=0), "gzip"),
    "deflate": encoded(zlib.compress(DONE), "deflate"),
    "raw deflate": encoded(zlib.compress(DONE, wbits=-zlib.MAX_WBITS), "deflate"),
    "gzip of a refusal": encoded(gzip.compress(GONE, mtime=0), "gzip"),
    "gzip that grows beyond the limit": encoded(gzip.compress(b" " * 2_000_000, mtime=0), "gzip"),
    "br": encoded(b"\x0b\x02\x80{}\x03", "br"),
    "a control character in a text": reply(b'{"statusCode":"900404","statusMsg":"a\nb\t"}'),
    "CESU-8": reply('{"statusCode":"900404","statusMsg":"没有\ud83d\ude00"}'.encode("utf-8", "surrogatepass")),
    "a damaged character": reply('{"statusCode":"900404","statusMsg":"没有'.encode() + b'\xe7"}'),
    "GBK": reply('{"statusCode":"900404","statusMsg":"没有"}'.encode("gbk")),
    "a page that is cut": closing(head("502 Bad Gateway", "Content-Length: 999") + b"<html>"),
}
UNKNOWN, REFUSED = ("IntermediaryError", "unknown"), ("IntermediaryError", "refused")
PAGE = "something between you and the platform answered: '"
KINDS = {  # the error ("" for success), its outcome, and words of its message
    "nginx /denied": (*UNKNOWN, f"HTTP 403 with HTML from 127.0.0.1:PORT (Server: nginx/*): {PAGE}403"),
    "nginx /none": (*REFUSED, f"HTTP 404 with HTML from 127.0.0.1:PORT (Server: nginx/*): {PAGE}404"),
    "nginx /small": (*REFUSED, f"HTTP 413 with HTML from 127.0.0.1:PORT (Server: nginx/*): {PAGE}413"),
    "nginx /away": (*UNKNOWN, f"HTTP 502 with HTML from 127.0.0.1:PORT (Server: nginx/*): {PAGE}502"),
    "nginx /moved": (
        *REFUSED,
        "HTTP 301 redirects to https://platform.example/moved/*, which is not followed: set base_url to https://platform.*/moved",
    ),
    "nginx /login": (
        *REFUSED,
        "HTTP 302 redirects to http://127.0.0.1*/sso/login, which is not followed: if the platform is there, set base_url",
    ),
    "haproxy /denied": (*UNKNOWN, f"HTTP 403 with HTML from 127.0.0.1:PORT: {PAGE}403 Forbidden"),
    "haproxy /moved": (
        *REFUSED,
        "HTTP 308 redirects to https://127.0.0.1*/moved/*, which is not followed: set base_url to https://127.0.0.1",
    ),
    "haproxy /": (*UNKNOWN, f"HTTP 503 with HTML from 127.0.0.1:PORT: {PAGE}503 Service Unavailable"),
    "gunicorn /": (*UNKNOWN, f"HTTP 500 with HTML from 127.0.0.1:PORT: {PAGE}Internal Server Error"),
    "squid http://denied.example": (
        *UNKNOWN,
        f"HTTP 403 with HTML from denied.example (Server: squid/*): {PAGE}ERROR: The requested URL",
    ),
    "squid http://login.example": (
        *REFUSED,
        "HTTP 407 with HTML from login.example (Server: squid/*): *: check user and password in the address of the proxy",
    ),
    "squid http://127.0.0.1:CLOSED": (*UNKNOWN, f"HTTP 503 with HTML from 127.0.0.1:* (Server: squid/*): {PAGE}ERROR"),
    "squid https://denied.example": (
        "NotSent",
        "not sent",
        "denied.example:443 through the proxy 127.0.0.1:* (the proxy opened",
    ),
    "squid https://login.example": (
        "NotSent",
        "not sent",
        "(the proxy wants other credentials: 407): check user and password",
    ),
    "HTML with HTTP 200": (*UNKNOWN, f"HTTP 200 with HTML from 127.0.0.1:PORT: {PAGE}Sign in'"),
    "text": (*UNKNOWN, f"HTTP 503 with text from 127.0.0.1:PORT: {PAGE}no healthy upstream'"),
    "XML": (*UNKNOWN, f"HTTP 403 with XML from 127.0.0.1:PORT (Server: S3): {PAGE}AccessDenied'"),
    "JSON of a gateway": (*REFUSED, "HTTP 404 with JSON from * (Server: kong/3.4): *no Route matched"),
    "an error without a body": (*REFUSED, "HTTP 401 without a body from 127.0.0.1:PORT"),
    "429 with a page": ("Throttled", "refused", "HTTP 429, no code: '<html>slow down"),
    "451": (*UNKNOWN, f"HTTP 451 with HTML from 127.0.0.1:PORT: {PAGE}blocked'"),
    "gzip": ("", "", ""),
    "deflate": ("", "", ""),
    "raw deflate": ("", "", ""),
    "gzip of a refusal": ("NotFound", "refused", "code 900404: 没有"),
    "gzip that grows beyond the limit": ("AnswerTooLarge", "unknown", "longer than 1000000 bytes, decompressed"),
    "br": ("ProtocolError", "unknown", "Content-Encoding 'br' was not asked for and is unknown"),
    "a control character in a text": ("NotFound", "refused", "code 900404: a b"),
    "CESU-8": ("NotFound", "refused", "code 900404: 没有😀"),
    "a damaged character": ("NotFound", "refused", "code 900404: 没有\N{REPLACEMENT CHARACTER}"),
    "GBK": ("NotFound", "refused", "code 900404: 没有"),
    "a page that is cut": ("Unanswered", "unknown", "no valid response from 127.0.0.1:PORT"),
}


@EACH
async def test_each_transport_tells_each_kind_in_the_same_way(module, between):
    wrong = {}
    for kind, (error, outcome, words) in KINDS.items():
        with between(kind) as (url, options):
            client = AsyncClient(
                base_url=url,
                credentials=Emulator().credentials,
                transport=class_of(module)(trust_env=False, answer_limit=1_000_000, **options),
                retry=Retry(attempts=1),
            )
            async with client:
                found = await _told(client)
        port = str(urlsplit(url).port)
        pattern = re.escape(words).replace(r"\*", ".*").replace("PORT", port)
        if found[:2] != (error, outcome) or not re.search(pattern, found[2]):
            wrong[kind] = found
    assert wrong == {}


async def _told(client):
    try:
        await client.send(CreateGroup(name="a", type=GroupType.VIP))
    except RbimError as error:
        return type(error).__name__, str(error.outcome), error.message
    return "", "", ""
