"""What connections send to the emulator: raw bytes on its protocol, with the control interface."""

import base64
import hashlib
import json
import re

from rbim import CreateGroup, Credentials, Dialect, GroupType, InviteJoinGroup, QueryGroupDetail, SearchPublicGroups
from rbim.clock import SystemClock
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.server.control import ControlApp, ControlContext, guard_of
from rbim.emulator.server.server import Listener, Protocol
from rbim.wire.codec import Codec
from tests.ci.fuzz.broken import Broken, require
from tests.ci.fuzz.connections import LOOP, Errors, answers, pieces, talk

WHAT = "the HTTP of `rbim emulator` and its control interface, raw bytes on a connection"
ORACLE = (
    "statuses and JSON as documented; only signed requests and commands change anything; a state can be exported and loaded"
)
INSTRUMENT = ["rbim", "h11", "uvicorn"]
MOST = 2000
APP_ID, TOKEN, STAMP = "fuzzed8947b5d6c80147b8a2b7c30123", "token-4b9de2a14f5c8b3e6d1a90c2f4", "20260102110405"
SIG = hashlib.md5((APP_ID + TOKEN + STAMP).encode()).hexdigest().upper()
FILLED = {b"$SIG": SIG.encode(), b"$AUTH": base64.b64encode(f"{APP_ID}:{STAMP}".encode()), b"$APP": APP_ID.encode()}
NEXT = b"\x1e"  # between the requests of one connection
STATUSES = {200, 400, 403, 404, 405, 409, 413, 415}
SIGNED = b"host: localhost\r\nauthorization: $AUTH\r\ncontent-length: $LEN\r\n\r\n"
TOLD = b" HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: $LEN\r\n\r\n"
WORDS = [
    *(b"POST ", b"GET ", b"PUT ", b"DELETE ", b"HEAD ", b" HTTP/1.1\r\n", b"$SIG", b"$AUTH", b"$APP", b"$LEN", NEXT),
    *(b"?sig=$SIG", b"host: localhost\r\n", b"origin: http://localhost\r\n", b"sec-fetch-site: none\r\n", b"/_emulator/"),
    *(b"state", b"reset", b"faults", b"clock/advance", b"logins", b"invitations/accept", b"copy", b"copy-faults"),
    *(b"deliveries", b"say", b"push", b"notify", b"applications/approve", b"requests", b"tasks", b"outage"),
    *(b'{"seconds":1}', b'"group_id":"g800000001"', b'"account":"1001"', b"[", b"{", b"null", b"1e999", b'"\\ud800"'),
    *(b"-1", b'"version":1', b'"groups":[]', b'"members":{"1":"1"}', b"chunked"),
]


def seeds():
    """Return connections with requests of each kind; the first byte is the size of the pieces."""
    codec = Codec(app_id=APP_ID, base_url="http://localhost", dialect=Dialect(), clock=SystemClock())
    operations = [
        CreateGroup(name="a", type=GroupType.TEMPORARY),
        InviteJoinGroup(group_id="g800000001", members=["1001", "1002"], needs_confirmation=True),
        QueryGroupDetail(group_id="g800000001"),
        SearchPublicGroups(name="a"),
    ]
    requests = []
    for op in operations:
        request = codec.encode(op)
        path = request.path.replace(APP_ID, "$APP").encode()
        requests.append(b"POST " + path + b"?sig=$SIG HTTP/1.1\r\n" + SIGNED + request.body)
    made, invited, *_ = requests
    commands = [
        (b"GET", b"", b""),
        (b"GET", b"state", b""),
        (b"PUT", b"state", json.dumps(_emulator().export()).encode()),
        (b"POST", b"reset", b""),
        (
            b"PUT",
            b"faults",
            b'[{"effect":{"kind":"latency","seconds":0.1}},{"effect":{"kind":"throttle"},"operation":"CreateGroup","nth":[2]}]',
        ),
        (b"POST", b"clock/advance", b'{"hours":1}'),
        (b"POST", b"logins", b'{"account":"1001"}'),
        (b"POST", b"invitations/accept", b'{"group_id":"g800000001","account":"1001"}'),
        (b"POST", b"say", b'{"sender":"1001","to":"g800000001","text":"a","at_user":["1002"]}'),
        (b"POST", b"push", b'{"to":["1001","1002"],"text":"a","save":true}'),
        (b"POST", b"notify", b'{"group_id":"g800000001","notice":"TEAM_KICK","members":["1001"]}'),
        (b"PUT", b"copy", b'{"url":"http://127.0.0.1:1/","mode":"normal"}'),
        (b"PUT", b"copy-faults", b"[]"),
        (b"DELETE", b"requests", b""),
        (b"GET", b"deliveries", b""),
    ]
    told = [method + b" /_emulator/" + path + TOLD + body for method, path, body in commands]
    return [
        *(b"\x00" + each for each in requests),
        *(b"\x00" + made + NEXT + invited + NEXT + each for each in told),
        *(b"\x20" + each for each in told[:3]),
        b"\x80" + made + NEXT + invited,
    ]


def _emulator():
    return Emulator(credentials=Credentials(app_id=APP_ID, app_token=TOKEN), clock=EmulatedClock(auto=True))


class _Listening(Listener):
    listening = True


_errors = []


def check(data):
    if not data:
        return
    if not _errors:
        _errors.append(Errors("uvicorn.error", "asyncio", "rbim"))
    emulator, methods = _emulator(), list[str]()
    context = ControlContext(emulator, None, sign_copies=False, remote_copies=False)
    guarded = ControlApp(context, guard_of(()), emulator.asgi)

    async def app(scope, receive, send):
        methods.append(scope["method"])
        await guarded(scope, receive, send)

    before = emulator.snapshot()
    message = b"".join(_filled(each) for each in data[1:].split(NEXT))
    size, half_close = (data[0] & 0x7F) * 2, bool(data[0] & 0x80)

    async def run():
        listener = _Listening(app, emulator.clock)
        return await talk(Protocol(listener), listener.state.tasks, pieces(message, size), half_close=half_close, turns=600)

    _errors[0].clear()
    wire = LOOP.run_until_complete(run())
    _errors[0].check()
    faulty = b"faults" in message
    require(TOKEN.encode() not in wire.written, "an answer shows the token")
    if not faulty:
        found = answers(wire.written, methods)
        require(len(found) <= len(methods) + 1, "more answers than requests", found, methods)
        for answer in found:
            require(answer.status in STATUSES, f"the status {answer.status}", answer)
            require(
                answer.body or answer.status == 200, "a refusal without a body", answer
            ) if "HEAD" not in methods else None
            if answer.body:
                document = json.loads(answer.body, parse_constant=_no_constant)
                told = isinstance(document, dict) and not document.keys().isdisjoint({"error", "statusCode", "statusMsg"})
                require(answer.status == 200 or told, "a refusal that says nothing", answer)
    if emulator.snapshot() != before:
        unquoted = _unquoted(message)
        signed = re.search(rb"[?&]sig=" + SIG.encode(), unquoted, re.IGNORECASE) and FILLED[b"$AUTH"] in message
        command = b"_emulator" in unquoted
        require(signed or command, "a request without a signature changed the state", message)
        require(
            re.search(rb"localhost|127\.|::|7f", message, re.IGNORECASE),
            "a request from elsewhere changed the state",
            message,
        )
        document = json.loads(json.dumps(emulator.export()))
        other = _emulator()
        try:
            other.load(document)
        except Exception as error:
            raise AssertionError("a state that was exported cannot be loaded") from error
        require(other.export() == document, "a state changes when it is exported and loaded", document, other.export())


def _no_constant(text):
    raise Broken("an answer has a number that is not JSON", text)


def _unquoted(message):
    return re.sub(rb"%([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), message)


def _filled(part):
    head, blank, body = part.partition(b"\r\n\r\n")
    for word, text in {**FILLED, b"$LEN": str(len(body)).encode()}.items():
        head = head.replace(word, text)
    return head + blank + body
