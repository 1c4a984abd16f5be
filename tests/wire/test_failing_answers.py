"""What a client makes of answers that fail, on real sockets: the error's class and outcome, what it says, what it hides."""

import copy
import gzip
import json
import logging
import pickle
import re
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.paths import PACKAGE, TESTS
from helpers.tables import each_row
from rbim import (
    AnswerTooLarge,
    ApiError,
    AsyncClient,
    CreateGroup,
    Credentials,
    GroupType,
    IntermediaryError,
    NotSent,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    RbimError,
    Retry,
    Throttled,
    TransportError,
    Unanswered,
)
from rbim.observers import LoggingObserver
from rbim.testing.conformance.server import RawServer, byte_by_byte, closing, head, refusing_port, reply, resetting, silent
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


def echoing(around: Any) -> Any:
    """Return a script that repeats the request: Authorization and sig first, then all of it as it came."""

    def script(peer: Any, seen: Any) -> None:
        peer.send(around(f"{seen.header('Authorization')} {seen.sig} ".encode() + seen.head + seen.body))

    return script


def html(status: str) -> Any:
    return lambda said: reply(b"<html><p>" + said + b"</p></html>", status, "Content-Type: text/html")


def in_status_msg(said: bytes) -> bytes:
    return code("112399", said.decode())


PAGE = b"<html><h1>It broke</h1></html>"
UNREADABLE: list[tuple[str, bytes, str]] = [
    ("brackets by the thousand", b"[" * 100_000 + b"]" * 100_000, "nested more than 64 levels deep"),
    ("no statusCode", b'{"name":"x"}', "required field missing @ $.statusCode"),
    ("half of JSON", b'{"statusCode":"000000","name":"', "not JSON"),
]

CASES = [
    *(
        Case(f"200 {name}", reply(body), ProtocolError, UNKNOWN, 200, None, (says,), {"status": 200} | whole)
        for name, body, says in UNREADABLE
        for whole in [{"body": body} if len(body) <= ANSWER_LIMIT else {}]
    ),
    Case("200 HTML", reply(PAGE), IntermediaryError, UNKNOWN, 200, says=("with HTML", "It broke"), facts={"body": PAGE}),
    Case(
        "200 an encoding that nobody reads",
        reply(b"\x0b\x02\x80{}\x03", "200 OK", "Content-Encoding: br"),
        ProtocolError,
        UNKNOWN,
        200,
        says=("Content-Encoding 'br' was not asked for",),
    ),
    Case(
        "200 gzip that is cut",
        reply(gzip.compress(b'{"statusCode":"000000"}', mtime=0)[:-9], "200 OK", "Content-Encoding: gzip"),
        ProtocolError,
        UNKNOWN,
        200,
        says=("the body is damaged",),
    ),
    Case(
        "200 gzip of an error",
        reply(gzip.compress(b'{"statusCode":"112310"}', mtime=0), "200 OK", "Content-Encoding: gzip"),
        ApiError,
        REFUSED,
        200,
        "112310",
    ),
    Case(
        "gzip that grows beyond the limit",
        reply(gzip.compress(b" " * (ANSWER_LIMIT + 1), mtime=0), "200 OK", "Content-Encoding: gzip"),
        AnswerTooLarge,
        UNKNOWN,
        200,
        says=(str(ANSWER_LIMIT), "decompressed"),
        facts={"limit": ANSWER_LIMIT},
    ),
    Case(
        "400 in gzip that repeats the request",
        echoing(lambda said: reply(gzip.compress(said, mtime=0), "400 No", "Content-Encoding: gzip")),
        IntermediaryError,
        REFUSED,
        400,
        says=("***",),
    ),
    Case(
        "200 CreateGroup without groupId",
        reply(b'{"statusCode":"000000"}'),
        ProtocolError,
        UNKNOWN,
        200,
        says=("required field missing @ $.groupId",),
        operation=CREATE,
    ),
    Case(
        "302 is not followed",
        reply(b"", "302 Found", "Location: /elsewhere?sig=1"),
        IntermediaryError,
        REFUSED,
        302,
        says=("/elsewhere, which is not followed",),
    ),
    Case("500 HTML", reply(PAGE, "500 Oh"), IntermediaryError, UNKNOWN, 500, says=("It broke",)),
    Case(
        "503 Retry-After",
        reply(b"", "503 Busy", "Retry-After: 3"),
        IntermediaryError,
        UNKNOWN,
        503,
        facts={"retry_after": 3.0},
    ),
    Case("500 a code", code("112310", "db down", "500 Oh"), ApiError, UNKNOWN, 500, "112310", ("112310", "db down")),
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
    Case("400 that repeats the request", echoing(html("400 No")), IntermediaryError, REFUSED, 400, says=("***",)),
    Case("500 that repeats the request", echoing(html("500 Oh")), IntermediaryError, UNKNOWN, 500, says=("***",)),
    Case("statusMsg that repeats the request", echoing(in_status_msg), ApiError, REFUSED, 200, "112399", ("112399", "***")),
    Case(
        "too large and repeats the request",
        echoing(lambda said: head("200 OK", "Connection: close") + said * ANSWER_LIMIT),
        AnswerTooLarge,
        UNKNOWN,
    ),
    Case("the request as status line", echoing(lambda said: said), Unanswered, UNKNOWN),
    Case(
        "the request as chunk",
        echoing(lambda said: head("200 OK", "Transfer-Encoding: chunked") + said),
        Unanswered,
        UNKNOWN,
    ),
    Case(
        "302 to the same address",
        echoing(lambda said: reply(b"", "302 Found", f"Location: https://127.0.0.1/{said.decode().split(' POST ')[0]}")),
        IntermediaryError,
        REFUSED,
        302,
        says=("***",),
    ),
]


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


async def failing(case, caplog):
    """Return the error of a case, its secrets, and what was logged."""
    caplog.clear()
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
    assert len(requests) == (case.script is not NOBODY)
    secrets = {TOKEN} | {secret for each in requests for secret in (each.sig, each.header("Authorization"))}
    assert "" not in secrets
    return error, secrets, "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)


@each_row("case", CASES)
async def test_a_failing_answer_is_the_documented_error_and_shows_no_secret(case, caplog):
    error, secrets, log = await failing(case, caplog)
    assert (type(error), error.outcome) == (case.error, case.outcome)
    assert {name: getattr(error, name) for name in case.facts} == case.facts
    assert [said for said in case.says if said not in str(error)] == []
    # the operation, the status and the attempt
    name = "CreateGroup" if case.operation is CREATE else "QueryGroupDetail"
    assert error.operation == name
    assert str(error).startswith(f"{name}: ")
    assert case.status in {None, 200} or f"HTTP {case.status}" in str(error)
    (attempt,) = error.attempts
    assert (attempt.number, attempt.status, attempt.code) == (1, case.status, case.code)
    assert (attempt.outcome, attempt.error) == (case.outcome, case.error.__name__)
    assert f"(1 attempt, outcome {case.outcome.value})" in str(error)
    # it survives pickle and copy
    for twin in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
    # no secret, and no frame of an HTTP library
    trace = traceback.TracebackException.from_exception(error, capture_locals=True)
    shown = [repr(error), str(error), pickle.dumps(error).decode("latin-1"), repr(vars(error)), "".join(trace.format()), log]
    assert [(text, secret) for text in shown for secret in secrets if secret in text] == []
    if issubclass(case.error, TransportError):
        files = {Path(name) for name in re.findall(r'File "(.*?)"', "".join(trace.format()))}
        assert [file for file in files if not (file.is_relative_to(PACKAGE) or file.is_relative_to(TESTS))] == []


async def test_a_request_names_its_host_and_an_answer_in_single_bytes_is_good():
    with RawServer(byte_by_byte(reply('{"statusCode":"000000","name":"研发"}'.encode()))) as server:
        credentials = Credentials(app_id=APP_ID, app_token=TOKEN)
        async with AsyncClient(base_url=server.url(), credentials=credentials) as client:
            assert (await client.send(DETAIL)).name == "研发"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", server.requests[0].header("Host"))
