"""The body of a delivery that was accepted: read twice, once for the inbox and once for the handler."""

import codecs
import json
import math
from datetime import UTC, datetime

from rbim._support import json as rbim_json
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.events import UnknownEvent, parse
from rbim.callbacks.worker.router import HandlerContext
from rbim.cli.callback.serve import line_of
from rbim.errors import CallbackRejected
from tests.ci.fuzz.broken import Broken, require
from tests.ci.fuzz.built import MARK, built, built_seeds

WHAT = "bodies of callbacks: `parse`, the delivery with its key and conversation, and the line of `--print`"
ORACLE = "the standard library's JSON; both readers agree; the same event in another spelling has the same key"
INSTRUMENT = ["rbim"]
MOST = 1500
RECEIVED = datetime(2026, 1, 2, tzinfo=UTC)
APP = "app1"
MESSAGES = ["TEXT", "PICTURE", "AUDIO", "VIDEO", "LOCATION", "FILE", "FILE_COMPRESS", "LINK", "AT"]
NOTICES = [
    *("TEAM_APPLY", "TEAM_INVITE", "TEAM_JOIN", "TEAM_DISMISS", "TEAM_QUIT", "TEAM_KICK", "TEAM_APPLY_ACCEPT"),
    *("TEAM_INVITE_ACCEPT", "TEAM_APPLY_REJECT", "TEAM_INVITE_REJECT", "TEAM_UPDATE", "TEAM_MEMBER_UPDATE"),
    *("TEAM_ADD_ADMIN", "TEAM_ROLE_UPDATE"),
]
CONVERSATIONS = ["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]
FIELDS = [
    *("eventType", "convType", "to", "fromAccount", "fromClientType", "fromDeviceId", "fromNick", "msgTimestamp", "msgType"),
    *("body", "attach", "msgId", "resendFlag", "customSaveFlag", "customApnsFlag", "customApnsText", "tMembers", "atUser"),
    *("ext", "linkInfo", "antispam", "member", "userName", "hit"),
]
WORDS = [
    *(f'"{each}":'.encode() for each in FIELDS),
    *(f'"{each}"'.encode() for each in (*MESSAGES, *NOTICES, *CONVERSATIONS)),
    *(
        b'"app1#1001"',
        b'"REST"',
        b'"\\ud83d"',
        b'"\\u0000"',
        b"null",
        b"true",
        b"1e400",
        b"1E5",
        b"-0",
        b"18446744073709551616",
    ),
    *(codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE, b"[[[[", b'"[\\"1001\\"]"', b'"1412128800000"', b"NaN"),
]
DEEPEST = 64


def seeds():
    """Return an event of each documented shape, and bodies that are none."""
    base = {"eventType": "1", "fromAccount": "app1#1001", "msgId": "7", "msgTimestamp": "1412128800000", "body": "你好"}
    found = [
        {**base, "convType": conversation, "to": "g1", "msgType": kind}
        for conversation in CONVERSATIONS
        for kind in (NOTICES if conversation == "NOTIFY_TEAM" else MESSAGES)
    ]
    found += [
        {**base, "convType": "CUSTOM_PERSON", "to": "REST", "tMembers": ["1001", "app1#1002"], "msgType": "TEXT"},
        {**base, "convType": "PERSON", "to": "1002", "msgType": "AT", "atUser": '["1001"]', "antispam": {"hit": "true"}},
        {
            **base,
            "resendFlag": "1",
            "customSaveFlag": 1,
            "tMembers": {"member": [{"userName": "1"}]},
            "other": [1, 2.5, None],
        },
        {"fromNick": "\ud83d", "msgType": "TEXT", "convType": "TEAM", "to": 7, "fromAccount": None},
    ]
    bodies = [json.dumps(each, ensure_ascii=number % 2 == 0 or number > 22).encode() for number, each in enumerate(found)]
    text = '{"msgId":"1"}'
    return [
        *bodies[::3],
        *bodies[-4:],
        codecs.BOM_UTF8 + text.encode(),
        codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
        codecs.BOM_UTF32_LE + text.encode("utf-32-le"),
        b"[" * 65 + b"]" * 65,
        b'{"a":1e400}',
        b'{"a":NaN}',
        b'{"a":1,"a":18446744073709551616}',
        b'{"a":"\xff"}',
        *built_seeds(12),
    ]


class Unreadable(Exception):
    """The body is no document of an event."""


def check(data):
    """Read one body, or one that is built from the bytes."""
    if data.startswith(MARK):
        data = json.dumps(built(data[1:], FIELDS, [*MESSAGES, *NOTICES, *CONVERSATIONS, "REST"], {"msgId": "7"})).encode()
    try:
        expected = by_standard_library(data)
    except Unreadable:
        expected = None
    delivery = delivery_of(data, app_id=APP, received=RECEIVED)
    require(len(delivery.key) == 32 and set(delivery.key) <= set("0123456789abcdef"), "a key of another form", delivery.key)
    try:
        event = parse(data)
    except CallbackRejected as error:
        require(expected is None, "a readable body is refused", error.message)
        require(delivery.kind is None and delivery.problem, "an unreadable body is not for quarantine", delivery)
        require(delivery.event is None and str(error).isprintable(), "an unreadable body", error)
        return
    if expected is None:
        raise Broken("an unreadable body is read", event)
    document = {**event.document}
    require(repr(document) == repr(expected), "another document is read", document, expected)
    _same_without_orjson(data, document)
    require(type(event) is delivery.kind, "the inbox takes it for another kind", type(event), delivery.kind)
    require(type(event).__name__ == _kind(document), "another kind of event", type(event), document)
    named = f"{APP}/{event.conversation}" if event.conversation else delivery.key
    require(
        delivery.conversation == named, "the inbox has another conversation than the event", delivery.conversation, named
    )
    require(delivery.resent == event.resend_flag, "the inbox has another resend flag than the event", delivery)
    sender = str(event.from_account)
    foreign = "#" in sender and sender.partition("#")[0] not in ("", APP)
    require(foreign == (delivery.problem is not None), "an account of another application", sender, delivery.problem)
    for name, value in (("to", event.to), ("msgId", event.msg_id), ("body", event.body), ("fromAccount", sender)):
        raw = document.get(name)
        require(
            value == (raw if isinstance(raw, str) else "" if raw is None else value), f"another text of {name}", value, raw
        )
    hash(event)
    str(event), event.sent_at, event.group_id
    require(event == parse(data), "an event does not equal itself")
    _check_key(delivery.key, document)
    context = HandlerContext(
        key=delivery.key,
        attempt=1,
        received=RECEIVED,
        replays=0,
        number=1,
        app_id=APP,
        resource=None,
        body=data,
        document=document,
    )
    for ascii_only in (False, True):
        line = line_of(event, context, ascii_only=ascii_only)
        require(line.count("\n") == 1 and line.isascii() >= ascii_only, "a printed event is not one line", line)
        shown = json.loads(line.encode())
        require(
            shown["key"] == delivery.key and (document.keys() - {"key", "attempt", "received"}) <= shown.keys(),
            "a field is not printed",
            shown,
        )


def _check_key(key, document):
    """The same event in another spelling, or sent again, has the same key; one of another application has another."""
    for spelling in (
        json.dumps(document, indent=1),
        json.dumps(dict(reversed(document.items())), ensure_ascii=False),
        json.dumps({**document, "resendFlag": "1"}),
    ):
        again = delivery_of(spelling.encode(), app_id=APP, received=RECEIVED)
        require(again.key == key, "another spelling has another key", spelling)
    other = delivery_of(json.dumps(document).encode(), app_id="app2", received=RECEIVED)
    require(other.key != key, "an event of another application has the same key")


def _same_without_orjson(data, document):
    found, rbim_json.orjson = rbim_json.orjson, None
    try:
        again = parse(data)
    finally:
        rbim_json.orjson = found
    require(repr({**again.document}) == repr(document), "orjson reads another document", document, again.document)


def _kind(document):
    event_type, conversation, kind = (document.get(name) for name in ("eventType", "convType", "msgType"))
    message = event_type is not True and event_type in (None, "", "1", 1)
    if message and isinstance(kind, str) and isinstance(conversation, str):
        known = NOTICES if conversation == "NOTIFY_TEAM" else MESSAGES if conversation in CONVERSATIONS else []
        if kind in known:
            return kind.title().replace("_", "")
    return UnknownEvent.__name__


# ------------------------------------------------------------------ by the standard library


def by_standard_library(body):
    """Return the document of a body as the promises say. Raises Unreadable."""
    text = _text(body)
    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, strict=False)
    except (ValueError, RecursionError):
        raise Unreadable from None
    if not isinstance(document, dict) or _depth(document) > DEEPEST:
        raise Unreadable
    return _whole(document)


def _text(body):
    marks = {
        codecs.BOM_UTF32_LE: "utf-32-le",
        codecs.BOM_UTF32_BE: "utf-32-be",
        codecs.BOM_UTF8: "utf-8",
        codecs.BOM_UTF16_LE: "utf-16-le",
        codecs.BOM_UTF16_BE: "utf-16-be",
    }
    mark = next((each for each in marks if body.startswith(each)), b"")
    try:
        return body[len(mark) :].decode(marks.get(mark, "utf-8"))
    except UnicodeDecodeError:
        pass
    try:
        return rbim_json.loads_repaired(body)[1].decode("utf-8-sig")
    except ValueError:
        raise Unreadable from None


def _refuse(_):
    raise Unreadable


def _finite(digits):
    if math.isinf(float(digits)):
        raise Unreadable
    return float(digits)


def _depth(value):
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


def _whole(value):
    """Return a document with U+FFFD for each lone surrogate."""
    if isinstance(value, str):
        return "".join("\ufffd" if 0xD800 <= ord(each) <= 0xDFFF else each for each in value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(each) for key, each in value.items()}
    return value
