"""Answers of the platform: any status and body, decoded for each operation."""

import json
import pickle
import re
from datetime import UTC, date, datetime

from rbim import (
    ApiError,
    CreateCallTask,
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    Dialect,
    GroupType,
    IntermediaryError,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    ModifyGroup,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    Role,
    SearchPublicGroups,
    SetMemberRole,
)
from rbim._support import json as rbim_json
from rbim.clock import SystemClock
from rbim.http import Response
from rbim.wire.codec import Codec
from tests.ci.fuzz.broken import Broken, require
from tests.ci.fuzz.built import MARK, built, built_seeds

WHAT = "answers of the platform to each of the eleven operations: any status, header Retry-After and body"
ORACLE = "the standard library's JSON and the documented rules; the same without orjson; each account counts once"
INSTRUMENT = ["rbim"]
MOST = 1200
DEEPEST = 64  # levels of arrays and objects
MEMBERS = ["1001", "1002", "App#7", "a b"]
OPERATIONS = [
    CreateGroup(name="a", type=GroupType.TEMPORARY),
    InviteJoinGroup(group_id="g1", members=MEMBERS, needs_confirmation=False),
    SearchPublicGroups(name="a"),
    QueryGroupDetail(group_id="g1"),
    CreateCallTask(
        bot_id=1,
        task_name="a",
        start_date=date(2026, 1, 5),
        end_date=date(2026, 1, 6),
        max_concurrent=1,
        min_concurrent=1,
        caller="1",
    ),
    ModifyGroup(group_id="g1", name="a", permission=None),
    DeleteGroup(group_id="g1"),
    JoinGroup(group_id="g1", declared="a"),
    DeleteGroupMember(group_id="g1", members=["1001"]),
    LogoutGroup(group_id="g1"),
    SetMemberRole(group_id="g1", member="1001", role=Role.MEMBER),
]
KEYS = [
    *("statusCode", "statusMsg", "code", "msg", "data", "groupId", "taskId", "fails", "fail", "Fails", "member", "userName"),
    *("failList", "failCount"),
    *("reason", "groups", "group", "count", "name", "owner", "declared", "dateCreated", "permission", "type", "target"),
    *("1001", "total", "extra", "$"),
]
CODES = ["000000", "111109", "160016", "161106", "000", "g1", "2014-10-1 10:5:3", "1002", "a b", "full"]
REQUIRED = {"CreateGroup": "groupId", "CreateCallTask": "taskId"}
STATUSES = [200, 200, 200, 200, 200, 200, 400, 401, 403, 404, 408, 429, 500, 502, 503, 204, 301, 202]
UNCERTAIN = {408, *range(500, 600)}
WAITS = [None, "1", "Fri, 02 Jan 2026 03:04:05 GMT", "\u0661", "-1", "1e9"]
WORDS = [
    *(b'"statusCode":"000000"', b'"statusMsg":""', b'"code":"000000"', b'"msg":""', b'"data":{', b'"groupId":"g1"'),
    *(b'"fails":[', b'"fail":', b'"member":"1001"', b'"userName":"1002"', b'"reason":"', b'"groups":{"group":['),
    *(b'"count":"3"', b'"name":"', b'"dateCreated":"2014-10-1 10:5:3"', b'"permission":"0"', b'"type":"7"'),
    *(b'"target":"1"', b'"taskId":"1"', b'"111109"', b"null", b"true", b"1e400", b"-0", b"18446744073709551616", b"NaN"),
    *(b'"\\ud83d"', b"\xef\xbb\xbf", b"\xc4\xe3\xba\xc3", b"000000"),
]


class Clock(SystemClock):
    """The time stands still."""

    def now(self):
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _codec():
    return Codec(app_id="App", base_url="http://h", dialect=Dialect(), clock=Clock())


CODEC = _codec()


def seeds():
    """Return answers of each kind; the first three bytes are operation, status and Retry-After."""
    documents = [
        (0, {"statusCode": "000000", "statusMsg": "", "groupId": "g1"}),
        (0, {"statusCode": 0, "groupId": 7, "code": "111109"}),
        (
            1,
            {
                "statusCode": "000000",
                "fails": [{"member": "1001", "reason": "已在群"}, {"userName": "App#1002", "msg": "x"}],
            },
        ),
        (1, {"statusCode": "000000", "Fail": {"1001": "full", "count": 1}, "fails": 1}),
        (1, {"statusCode": "000000", "fails": "1001,1002"}),
        (1, {"statusCode": "000000", "failList": ["1001"], "data": {"failCount": 1}}),
        (
            2,
            {"statusCode": "000000", "groups": {"group": [{"groupId": "g1", "name": "a", "count": "3", "permission": "1"}]}},
        ),
        (2, {"statusCode": "000000", "groupId": "g1", "name": "a", "type": 7}),
        (
            3,
            {
                "statusCode": "000000",
                "name": "n",
                "count": "1,2",
                "dateCreated": "2014-10-1 10:5:3",
                "target": "9",
                "x": [1],
            },
        ),
        (4, {"code": "000000", "msg": "ok", "data": {"taskId": "t1", "msg": "m"}}),
        (4, {"statusCode": "111109", "statusMsg": "no"}),
        (5, {"statusCode": "000000", "statusMsg": "ok"}),
        (6, {"statusCode": "160016", "statusMsg": "slow"}),
    ]
    found = [bytes([op, 0, 0]) + json.dumps(each, ensure_ascii=False).encode() for op, each in documents]
    found += [
        b"\x05\x08\x01" + found[-1][3:],
        b"\x01\x00\x00" + b'{"statusCode":"000000","f\\u0061ils":["1001"],"fails":[]}',
        b"\x00\x00\x00" + b'{"statusCode":"000000","groupId":"g1","statusCode":"111109"}',
        b"\x07\x0c\x02<html>busy</html>",
        b"\x08\x00\x00",
        b"\x09\x06\x00" + '{"statusCode":"111109","statusMsg":"签名错误"}'.encode("gb18030"),
        b"\x0a\x0b\x01{}",
        b"\x03\x00\x00" + b'{"statusCode":"000000","name":' + b"[" * 60 + b"]" * 60 + b"}",
    ]
    return [*found, *(bytes([number, 0, 0]) + tape for number, tape in enumerate(built_seeds(33)))]


def check(data):
    """Decode one answer."""
    if len(data) < 3:
        return
    op, status = OPERATIONS[data[0] % len(OPERATIONS)], STATUSES[data[1] % len(STATUSES)]
    wait, body = WAITS[data[2] % len(WAITS)], data[3:]
    if body.startswith(MARK):
        body = json.dumps(built(body[1:], KEYS, CODES, {op.endpoint.code: "000000"})).encode()
    response = Response(status, {} if wait is None else {"retry-after": wait}, body)
    first = decode(CODEC, op, response)
    require(decode(CODEC, op, response)[1] == first[1], "a second time it is another answer", first[1])
    found, rbim_json.orjson = rbim_json.orjson, None
    try:
        other = decode(_codec(), op, response)
    finally:
        rbim_json.orjson = found
    require(first[1] == other[1], "orjson reads another answer", first[1], other[1])
    result = first[0]
    if _is_ambiguous(body):
        require(isinstance(result, ProtocolError), "an answer with a deciding key twice is read", result)
        return
    if isinstance(result, Exception):
        _check_error(result, status, body)
    else:
        _check_answer(op, result, status, body)
    _check_by_rules(op, result, status, body)


def decode(codec, op, response):
    """Return the answer or the error, and a text in which two of them can be compared."""
    try:
        answer = codec.decode(op, response)
    except (ApiError, ProtocolError) as error:
        return error, f"{type(error).__name__} {error} {error.outcome} {error.status} {error.retry_after}"
    return answer, repr(answer)


def _check_error(error, status, body):
    require(error.status == status and error.body == body, "an error of another answer", error)
    require(status not in UNCERTAIN or error.outcome is Outcome.UNKNOWN, f"status {status} is no refusal", error)
    by_status = isinstance(error, IntermediaryError) and 300 <= status < 500 and status not in {403, 408, 451}
    refused = isinstance(error, ApiError) or by_status
    require(refused or error.outcome is Outcome.UNKNOWN, "an unreadable answer is no refusal", error)
    require(error.retry_after is None or 0 <= error.retry_after <= 86_400, "Retry-After is out of range", error.retry_after)
    again = pickle.loads(pickle.dumps(error))
    require(
        (type(again), str(again), again.outcome) == (type(error), str(error), error.outcome), "an error changes when pickled"
    )


def _check_answer(op, answer, status, body):
    require(status == 200, f"status {status} is no success", answer)
    hash(answer)
    if isinstance(op, InviteJoinGroup):
        counted = [*answer.invited, *answer.refused, *answer.unknown]
        require(sorted(counted) == sorted(MEMBERS), "an account is lost or counted twice", answer)
        document = by_standard_library(body)
        fails = {key: value for key, value in document.items() if "fail" in key.lower()}
        for named in _named(fails):
            require(named not in answer.invited, "an account that failed is called invited", named, answer)


def _named(value):
    """Return the accounts that stand in a field ``member`` anywhere in a value."""
    if isinstance(value, list):
        return {name for each in value for name in _named(each)}
    if not isinstance(value, dict):
        return set()
    own = {value["member"]} if isinstance(value.get("member"), str) and value["member"] in MEMBERS else set()
    return own | {name for each in value.values() for name in _named(each)}


def _is_ambiguous(body):
    """Whether an object has a key of a status code twice, or any key while one contains "fail"."""
    keys = []

    def note(pairs):
        keys.append([key for key, _ in pairs])
        return dict(pairs)

    if not isinstance(by_standard_library(body, note), dict):
        return False
    any_key = any("fail" in key.lower() for own in keys for key in own)
    return any(own.count(key) > 1 and (any_key or key in ("statusCode", "code")) for own in keys for key in own)


def _check_by_rules(op, result, status, body):
    """Compare with the documented rules, where the document is plain."""
    document = by_standard_library(body)
    if not isinstance(document, dict) or _depth(document) > 90:
        if not isinstance(result, Exception):
            raise Broken("an answer that is no JSON object is a success", result)
        return
    mine, other = (op.endpoint.code, {"statusCode": "code", "code": "statusCode"}[op.endpoint.code])
    code, strange = _code(document.get(mine)), _code(document.get(other))
    if strange is not None:
        return
    if code == "000000" and status == 200:
        field = REQUIRED.get(type(op).__name__)
        inner = document.get("data") if op.endpoint.payload else None
        value = None if field is None else ({**document, **inner} if isinstance(inner, dict) else document).get(field)
        if field is None or (isinstance(value, (str, int)) and value is not True and value is not False and value != ""):
            require(not isinstance(result, Exception), "an answer is lost", result)
            if field == "groupId":
                require(result.group_id == str(value), "another group", result)
    elif code not in (None, "000000"):
        require(isinstance(result, ApiError) and result.code == code, "a code is lost", result, code)
        message = document.get(op.endpoint.message)
        require(not isinstance(message, str) or result.platform_message == message, "another message", result, message)
    else:
        require(isinstance(result, Exception), "a success without its code", result)


def _code(value):
    """Return the code in a field: six digits, also as a number, or zeros; None for a gateway's own code."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = "0" if value == 0 else str(value)
    if not isinstance(value, str) or not value:
        return None
    if set(value) == {"0"}:
        return value.rjust(6, "0")
    return value if re.fullmatch("[0-9]{6}", value) else None


def _depth(value):
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


def by_standard_library(body, note=None):
    """Return the JSON of a body, in UTF-8 or repaired as rbim repairs it; None if it is none."""
    try:
        text = (body if _is_utf_8(body) else rbim_json.loads_repaired(body)[1]).decode("utf-8-sig")
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=note, strict=False)
        return None if _depth(document) > DEEPEST else document
    except (ValueError, RecursionError):
        return None


def _is_utf_8(body):
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _depth(value):
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_depth, children), default=0)


def _refuse(name):
    raise ValueError(name)


def _finite(digits):
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(digits)
    return number
