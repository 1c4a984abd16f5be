"""What a client makes of answers that fail, on real sockets: the error's class and outcome, what it says, what it hides."""

import base64
import copy
import gzip
import hashlib
import json
import logging
import pickle
import re
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.paths import PACKAGE, TESTS
from rbim import (
    AnswerTooLarge,
    ApiError,
    AsyncClient,
    AuthenticationError,
    CreateGroup,
    Credentials,
    GroupType,
    NotFound,
    NotSent,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    RbimError,
    Retry,
    ServerTrouble,
    SystemClock,
    Throttled,
    TimestampExpired,
    TransportError,
    Unanswered,
)
from rbim._support import json as rbim_json
from rbim.client.observers import LoggingObserver
from rbim.testing.conformance.server import (
    RawServer,
    Received,
    byte_by_byte,
    closing,
    echoing,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)
from rbim.transports.httpx import HttpxTransport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

ANSWER_LIMIT = 20_000
UNKNOWN, REFUSED, NOT_SENT = Outcome.UNKNOWN, Outcome.REFUSED, Outcome.NOT_SENT
DETAIL = QueryGroupDetail(group_id="g80000049837291")
CREATE = CreateGroup(name="研发", type=GroupType.TEMPORARY)
NOBODY = "nobody listens"


@dataclass(frozen=True)
class Case:
    """One failing answer and what the documentation makes of it; ``status`` and ``code`` are the attempt's."""

    name: str
    script: Any
    error: type[RbimError]
    outcome: Outcome
    status: int | None = None
    code: str | None = None
    says: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    operation: Any = DETAIL
    timeout: float = 10.0


def code(status_code: str, message: str, status: str = "200 OK", *headers: str) -> bytes:
    return reply(json.dumps({"statusCode": status_code, "statusMsg": message}).encode(), status, *headers)


def html(status: str) -> Any:
    return lambda said: reply(b"<html><p>" + said + b"</p></html>", status, "Content-Type: text/html")


def in_status_msg(said: bytes) -> bytes:
    return code("112399", said.decode())


PAGE = b"<html><h1>It broke</h1></html>"
UNREADABLE: list[tuple[str, bytes, str]] = [
    ("half a document", b'{"statusCode":"000000","name":"', "not JSON"),
    ("a list", b'["000000"]', "an object is needed, not list"),
    ("brackets without end", b"[" * 100_000, "nested too deep"),
    ("a number without end", b'{"statusCode":"000000","count":' + b"9" * 6_000 + b"}", "a number with too many digits"),
    ("no statusCode", b'{"name":"x"}', "required field missing @ $.statusCode"),
    ("statusCode null", b'{"statusCode":null}', "required field missing @ $.statusCode"),
    ("an empty body", b"", "an empty answer"),
    ("white space", b" \r\n", "an empty answer"),
    ("HTML", PAGE, "It broke"),
    ("not UTF-8", b'{"statusCode":"000000","name":"\xff"}', "not UTF-8"),
    ("NaN", b'{"statusCode":"000000","count":NaN}', "NaN is not JSON"),
]

CASES = [
    *(
        Case(f"200 {name}", reply(body), ProtocolError, UNKNOWN, 200, None, (says,), {"status": 200, "body": body})
        for name, body, says in UNREADABLE
        if len(body) <= ANSWER_LIMIT
    ),
    *(
        Case(f"200 {name}", reply(body), ProtocolError, UNKNOWN, 200, None, (says,), {"status": 200})
        for name, body, says in UNREADABLE
        if len(body) > ANSWER_LIMIT
    ),
    Case(
        "200 gzip although identity was asked for",
        reply(gzip.compress(b'{"statusCode":"000000"}', mtime=0), "200 OK", "Content-Encoding: gzip"),
        ProtocolError,
        UNKNOWN,
        200,
    ),
    Case("200 gzip junk", reply(b"\x1f\x8bjunk", "200 OK", "Content-Encoding: gzip"), ProtocolError, UNKNOWN, 200),
    Case(
        "200 CreateGroup without groupId",
        reply(b'{"statusCode":"000000"}'),
        ProtocolError,
        UNKNOWN,
        200,
        says=("required field missing @ $.groupId",),
        operation=CREATE,
    ),
    Case("302 is not followed", reply(b"", "302 Found", "Location: /elsewhere"), ProtocolError, UNKNOWN, 302),
    Case("204", head("204 No Content"), ProtocolError, UNKNOWN, 204),
    Case("500 HTML", reply(PAGE, "500 Oh"), ProtocolError, UNKNOWN, 500, says=("It broke",)),
    Case("502 empty", reply(b"", "502 Bad Gateway"), ProtocolError, UNKNOWN, 502, says=("an empty answer",)),
    Case("500 a code of success", code("000000", "", "500 Oh"), ProtocolError, UNKNOWN, 500),
    Case(
        "503 Retry-After",
        reply(b"", "503 Busy", "Retry-After: 3"),
        ProtocolError,
        UNKNOWN,
        503,
        facts={"retry_after": 3.0},
    ),
    Case("500 a code", code("112310", "db down", "500 Oh"), ApiError, UNKNOWN, 500, "112310", ("112310", "db down")),
    Case("400 HTML", reply(PAGE, "400 Bad Request"), ApiError, REFUSED, 400, says=("It broke",)),
    Case("401 HTML", reply(PAGE, "401 Unauthorized"), AuthenticationError, REFUSED, 401, says=("It broke",)),
    Case("403 empty", reply(b"", "403 Forbidden"), AuthenticationError, REFUSED, 403),
    Case("404", reply(PAGE, "404 Not Found"), NotFound, REFUSED, 404),
    Case(
        "429 Retry-After",
        reply(b"slow down", "429 Too Many Requests", "Retry-After: 7"),
        Throttled,
        REFUSED,
        429,
        says=("slow down",),
        facts={"retry_after": 7.0, "platform_message": "'slow down'"},
    ),
    Case(
        "an unknown code",
        code("112310", "余额不足"),
        ApiError,
        REFUSED,
        200,
        "112310",
        ("112310", "余额不足"),
        {"code": "112310", "platform_message": "余额不足"},
    ),
    Case("a code as a number", reply(b'{"statusCode":1234}'), ApiError, REFUSED, 200, "001234", ("001234",)),
    Case("a code that is no number", code("E-7", "no"), ApiError, REFUSED, 200, "E-7", ("E-7", "no")),
    Case("signature refused", code("111109", "sig"), AuthenticationError, REFUSED, 200, "111109", ("111109",)),
    Case("timestamp expired", code("161106", "expired"), TimestampExpired, REFUSED, 200, "161106", ("expired",)),
    Case("a code of throttling", code("160016", "too fast"), Throttled, REFUSED, 200, "160016", ("too fast",)),
    Case("a code of server trouble", code("529999", "trouble"), ServerTrouble, UNKNOWN, 200, "529999", ("trouble",)),
    Case("connection refused", NOBODY, NotSent, NOT_SENT),
    Case("reset", resetting, Unanswered, UNKNOWN),
    Case("closed without an answer", closing(), Unanswered, UNKNOWN),
    Case("half an answer", closing(reply(b"{}" * 50)[:-50]), Unanswered, UNKNOWN),
    Case("no HTTP", closing(b"SSH-2.0-x\r\n\r\n"), Unanswered, UNKNOWN),
    Case("silence", silent, Unanswered, UNKNOWN, timeout=0.2, says=("no complete response within 0.2 s",)),
    Case(
        "too large, announced",
        reply(b" " * (ANSWER_LIMIT + 1)),
        AnswerTooLarge,
        UNKNOWN,
        says=(str(ANSWER_LIMIT),),
        facts={"limit": ANSWER_LIMIT},
    ),
    Case("too large, until close", closing(head("200 OK") + b" " * ANSWER_LIMIT * 9), AnswerTooLarge, UNKNOWN),
    Case("400 that repeats the request", echoing(html("400 No")), ApiError, REFUSED, 400, says=("***",)),
    Case("500 that repeats the request", echoing(html("500 Oh")), ProtocolError, UNKNOWN, 500, says=("***",)),
    Case("200 that repeats the request", echoing(html("200 OK")), ProtocolError, UNKNOWN, 200, says=("***",)),
    Case("statusMsg that repeats the request", echoing(in_status_msg), ApiError, REFUSED, 200, "112399", ("112399", "***")),
    Case(
        "too large and repeats the request",
        echoing(lambda said: head("200 OK", "Connection: close") + said * ANSWER_LIMIT),
        AnswerTooLarge,
        UNKNOWN,
    ),
    Case("the request as status line", echoing(lambda said: said), Unanswered, UNKNOWN),
    Case(
        "the request as header",
        echoing(lambda said: b"HTTP/1.1 200 OK\r\n" + said),
        Unanswered,
        UNKNOWN,
    ),
    Case(
        "the request as chunk",
        echoing(lambda said: head("200 OK", "Transfer-Encoding: chunked") + said),
        Unanswered,
        UNKNOWN,
    ),
    Case(
        "302 to the same address",
        echoing(lambda said: reply(b"", "302 Found", f"Location: https://127.0.0.1/{said.decode().split(' POST ')[0]}")),
        ProtocolError,
        UNKNOWN,
        302,
    ),
]


@dataclass
class Failed:
    """A case, the error that came of it, the requests that the server saw, and the log."""

    case: Case
    error: RbimError
    requests: list[Received]
    log: str

    @property
    def secrets(self) -> set[str]:
        sent = {secret for request in self.requests for secret in (request.sig, request.header("Authorization"))}
        assert "" not in sent
        return {TOKEN, *sent}


@contextmanager
def platform(script):
    """Serve the script; give its address and the requests it sees."""
    if script is NOBODY:
        with refusing_port() as port:
            yield f"http://127.0.0.1:{port}", []
    else:
        with RawServer(script) as server:
            yield server.url(), server.requests


async def error_of(client: AsyncClient, operation: Any) -> RbimError:
    """Return the error of a call, from a frame that holds no secret."""
    with pytest.raises(RbimError) as raised:
        await client.send(operation)
    return raised.value


@pytest.fixture(autouse=True)
def json_library(request, monkeypatch):
    if getattr(request, "param", "") == "standard library":
        monkeypatch.setattr(rbim_json, "orjson", None)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
async def failed(request, caplog):
    case: Case = request.param
    caplog.set_level(logging.DEBUG)
    with platform(case.script) as (url, requests):
        client = AsyncClient(
            base_url=url,
            credentials=Credentials(app_id=APP_ID, app_token=TOKEN),
            transport=HttpxTransport(answer_limit=ANSWER_LIMIT if case.error is AnswerTooLarge else 8 * 1024 * 1024),
            timeout=case.timeout,
            retry=Retry(attempts=1),
            observers=[LoggingObserver()],
        )
        async with client:
            error = await error_of(client, case.operation)
    log = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert len(requests) == (case.script is not NOBODY)
    return Failed(case, error, requests, log)


@pytest.mark.parametrize("json_library", ["installed", "standard library"], indirect=True)
async def test_a_failing_answer_is_the_documented_error_with_the_documented_outcome(failed):
    case, error = failed.case, failed.error
    assert (type(error), error.outcome) == (case.error, case.outcome)
    assert {name: getattr(error, name) for name in case.facts} == case.facts
    for said in case.says:
        assert said in str(error)


async def test_an_error_names_its_operation_and_its_http_status(failed):
    case, error = failed.case, failed.error
    name = "CreateGroup" if case.operation is CREATE else "QueryGroupDetail"
    assert error.operation == name
    assert str(error).startswith(f"{name}: ")
    if case.status not in {None, 200}:
        assert f"HTTP {case.status}" in str(error)


async def test_an_error_holds_its_attempt(failed):
    case, error = failed.case, failed.error
    (attempt,) = error.attempts
    assert (attempt.number, attempt.status, attempt.code) == (1, case.status, case.code)
    assert (attempt.outcome, attempt.error) == (case.outcome, case.error.__name__)
    assert 0 <= attempt.elapsed < 10
    assert f"(1 attempt, outcome {case.outcome.value})" in str(error)


async def test_an_error_survives_pickle_and_copy(failed):
    error = failed.error
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for twin in (copy.copy(error), copy.deepcopy(error), *map(pickle.loads, pickled)):
        assert twin is not error
        assert type(twin) is type(error)
        assert (str(twin), repr(twin), twin.outcome) == (str(error), repr(error), error.outcome)
        assert twin.attempts == error.attempts
        assert vars(twin) == vars(error)


async def test_an_error_shows_no_secret(failed):
    shown = {
        "repr": repr(failed.error),
        "str": str(failed.error),
        "pickle": pickle.dumps(failed.error).decode("latin-1"),
        "attributes": repr(vars(failed.error)),
        "traceback": "".join(traceback.TracebackException.from_exception(failed.error, capture_locals=True).format()),
        "log": failed.log,
    }
    leaks = [(where, secret) for where, text in shown.items() for secret in failed.secrets if secret in text]
    assert leaks == []


LOST = [case for case in CASES if issubclass(case.error, TransportError)]


@pytest.mark.parametrize("failed", LOST, ids=lambda case: case.name, indirect=True)
async def test_a_transports_error_holds_no_frame_of_an_http_library(failed):
    shown = "".join(traceback.TracebackException.from_exception(failed.error).format())
    files = {Path(name) for name in re.findall(r'File "(.*?)"', shown)}
    assert [file for file in files if not (file.is_relative_to(PACKAGE) or file.is_relative_to(TESTS))] == []


class TickingClock(SystemClock):
    """Another second each time it is asked for the time of day."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time


def signed_correctly(request: Received) -> str:
    """Return the timestamp under which the request was signed, once its sig is seen to belong to it."""
    app_id, timestamp = base64.b64decode(request.header("Authorization")).decode().split(":")
    assert app_id == APP_ID
    assert request.sig == hashlib.md5(f"{APP_ID}{TOKEN}{timestamp}".encode()).hexdigest().upper()
    return timestamp


async def run(operation, *scripts, attempts):
    """Return the requests that the server saw, the error or the answer."""
    with RawServer(*scripts) as server:
        client = AsyncClient(
            base_url=server.url(),
            credentials=Credentials(app_id=APP_ID, app_token=TOKEN),
            retry=Retry(attempts=attempts, random=lambda: 0.0),
            clock=TickingClock(),
        )
        async with client:
            try:
                result = await client.send(operation)
            except RbimError as error:
                result = error
    return server.requests, result


@pytest.mark.parametrize("operation", [DETAIL, CREATE], ids=["a query", "a creation"])
async def test_an_expired_timestamp_is_signed_again_exactly_once(operation):
    requests, error = await run(operation, code("161106", "expired"), attempts=3)
    assert type(error) is TimestampExpired
    assert len(requests) == len(error.attempts) == 2
    first, second = map(signed_correctly, requests)
    assert first != second


async def test_a_call_that_is_signed_again_goes_well():
    requests, detail = await run(DETAIL, code("161106", "expired"), reply(b'{"statusCode":"000000","name":"n"}'), attempts=3)
    assert detail.name == "n"
    assert len(requests) == 2


async def test_the_history_holds_every_attempt_and_the_least_certain_outcome_is_the_calls():
    requests, error = await run(DETAIL, reply(PAGE, "500 Oh"), resetting, code("112310", "no"), attempts=3)
    assert len(requests) == 3
    assert type(error) is ApiError
    assert error.outcome is UNKNOWN
    assert [(made.number, made.status, made.code, made.outcome, made.error) for made in error.attempts] == [
        (1, 500, None, UNKNOWN, "ProtocolError"),
        (2, None, None, UNKNOWN, "Unanswered"),
        (3, 200, "112310", REFUSED, "ApiError"),
    ]
    assert str(error).endswith("(3 attempts, outcome unknown)")


@pytest.mark.parametrize("script", [reply(PAGE, "500 Oh"), closing(), reply(b"")], ids=["500", "closed", "empty"])
async def test_a_creation_of_unknown_outcome_is_not_repeated(script):
    requests, error = await run(CREATE, script, attempts=3)
    assert len(requests) == 1
    assert error.outcome is UNKNOWN


async def test_a_good_answer_in_single_bytes_is_good():
    _, detail = await run(DETAIL, byte_by_byte(reply('{"statusCode":"000000","name":"研发"}'.encode())), attempts=1)
    assert detail.name == "研发"
