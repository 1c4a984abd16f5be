"""Events out of bodies: the interface description's table written down a second time, and whatever else may come instead."""

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import example, given, settings, strategies as st

from helpers.credentials import APP_ID
from helpers.deliveries import bytes_of
from helpers.tables import each_row
from rbim import CallbackRejected
from rbim._support import json as rbim_json
from rbim.callbacks import events
from rbim.callbacks.events import (
    Account,
    ClientType,
    ConvType,
    Event,
    Message,
    MsgType,
    Notice,
    Notification,
    UnknownEvent,
    class_names,
    parse,
)


@pytest.fixture(params=["orjson", "standard library"], scope="module", autouse=True)
def road(request):
    """Read JSON with orjson, then with the standard library."""
    assert rbim_json.orjson is not None
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "orjson":
            patch.setattr(rbim_json, "orjson", None)
        yield


# The table of the description, in its words and its order.

MEANT_FOR_ONE = ["PERSON", "CUSTOM_PERSON"]
MEANT_FOR_GROUPS = ["TEAM", "CUSTOM_TEAM"]
SAID = {
    "TEXT": events.Text,
    "PICTURE": events.Picture,
    "AUDIO": events.Audio,
    "VIDEO": events.Video,
    "LOCATION": events.Location,
    "FILE": events.File,
    "FILE_COMPRESS": events.FileCompress,
    "LINK": events.Link,
    "AT": events.At,
}
NOTIFIED = {
    "TEAM_APPLY": events.TeamApply,
    "TEAM_INVITE": events.TeamInvite,
    "TEAM_JOIN": events.TeamJoin,
    "TEAM_DISMISS": events.TeamDismiss,
    "TEAM_QUIT": events.TeamQuit,
    "TEAM_KICK": events.TeamKick,
    "TEAM_APPLY_ACCEPT": events.TeamApplyAccept,
    "TEAM_INVITE_ACCEPT": events.TeamInviteAccept,
    "TEAM_APPLY_REJECT": events.TeamApplyReject,
    "TEAM_INVITE_REJECT": events.TeamInviteReject,
    "TEAM_UPDATE": events.TeamUpdate,
    "TEAM_MEMBER_UPDATE": events.TeamMemberUpdate,
    "TEAM_ADD_ADMIN": events.TeamAddAdmin,
    "TEAM_ROLE_UPDATE": events.TeamRoleUpdate,
}
CLIENTS = ["Android", "IOS", "IPAD", "Android PAD", "PC", "H5", "MAC", "REST"]
KINDS = [(conv, msg, kind) for conv in MEANT_FOR_ONE + MEANT_FOR_GROUPS for msg, kind in SAID.items()] + [
    ("NOTIFY_TEAM", msg, kind) for msg, kind in NOTIFIED.items()
]
# wire name: attribute, what is sent, what it becomes, what it is where nothing is sent
TABLE = {
    "eventType": ("event_type", "1", "1", "1"),
    "convType": ("conv_type", "TEAM", ConvType.TEAM, None),
    "to": ("to", "g80000049837291", "g80000049837291", ""),
    "fromAccount": ("from_account", f"{APP_ID}#1001", Account(APP_ID, "1001"), Account(None, "")),
    "fromClientType": ("from_client_type", "Android PAD", ClientType.ANDROID_PAD, None),
    "fromDeviceId": ("from_device_id", "D-1", "D-1", ""),
    "fromNick": ("from_nick", "张三 🎉", "张三 🎉", ""),
    "msgTimestamp": ("msg_timestamp", "1767323045006", 1767323045006, None),
    "msgType": ("msg_type", "AT", MsgType.AT, None),
    "body": ("body", "你好 @1002", "你好 @1002", ""),
    "attach": ("attach", "https://example.com/a?b=c", "https://example.com/a?b=c", ""),
    "msgId": ("msg_id", "m80000070010001", "m80000070010001", ""),
    "resendFlag": ("resend_flag", "1", True, False),
    "customSaveFlag": ("custom_save_flag", "1", True, False),
    "customApnsFlag": ("custom_apns_flag", "1", True, False),
    "customApnsText": ("custom_apns_text", "新消息", "新消息", ""),
    "tMembers": ("t_members", [f"{APP_ID}#1001", "1002"], (Account(APP_ID, "1001"), Account(None, "1002")), ()),
    "atUser": ("at_user", [f"{APP_ID}#1002"], (Account(APP_ID, "1002"),), ()),
    "ext": ("ext", '{"a":1}', '{"a":1}', ""),
    "linkInfo": ("link_info", "a link", "a link", ""),
    "antispam": ("antispam", "true", True, False),
}
SAMPLE = {name: sent for name, (_, sent, _, _) in TABLE.items()}


def read(document=None, /, **changed):
    return parse(bytes_of({**(SAMPLE if document is None else document), **changed}))


def fields(event, *without):
    """Return an event's fields in a form that tells True from 1, and an enum's member from its text."""
    return {
        each.name: (type(value := getattr(event, each.name)), value)
        for each in attrs.fields(type(event))
        if each.name not in without
    }


# -------------------------------------------------------------------------------------- the table


def test_every_field_of_the_table_is_read_and_typed():
    event = read()
    assert type(event) is events.At
    for attribute, _, value, _ in TABLE.values():
        assert getattr(event, attribute) == value
        assert type(getattr(event, attribute)) is type(value), attribute
    assert event.sent_at == datetime(2026, 1, 2, 3, 4, 5, 6_000, tzinfo=UTC)
    assert event.msg_timestamp_text == "1767323045006"
    assert event.extra == {}
    known = {attribute for attribute, *_ in TABLE.values()}
    assert known | {"msg_timestamp_text", "extra", "document"} == {each.name for each in attrs.fields(Event)}


def test_absent_null_and_empty_fields_can_be_told_apart():
    for name in ("antispam", "customSaveFlag", "resendFlag", "body", "ext", "tMembers", "fromNick"):
        without = {key: value for key, value in SAMPLE.items() if key != name}
        events = [parse(bytes_of(document)) for document in (without, without | {name: None}, without | {name: ""})]
        assert events[0] == events[1] == events[2]  # in everyday reading they are equal
        assert hash(events[0]) == hash(events[1])
        assert [event.document.get(name, "absent") for event in events] == ["absent", None, ""]


def test_the_document_is_what_came_and_no_field_of_the_platform_can_replace_it():
    sent = {"convType": "TEAM", "msgType": "TEXT", "resendFlag": "0", "rbim:document": {"to": "x"}, "new": [1]}
    event = parse(bytes_of(sent))
    assert type(event) is events.Text
    assert event.document == sent
    assert event.extra == {"new": [1]}
    assert "document" not in repr(event)


@pytest.mark.parametrize("conv", [*MEANT_FOR_ONE, *MEANT_FOR_GROUPS, "NOTIFY_TEAM"])
def test_every_kind_has_its_class_and_its_words_are_members(conv):
    wrong = {}
    for _, msg, kind in (each for each in KINDS if each[0] == conv):
        event = read(convType=conv, msgType=msg)
        group = (Notification, Notice) if conv == "NOTIFY_TEAM" else (Message, MsgType)
        words = [event.type_name, event.msg_type, event.conv_type]
        found = (type(event), isinstance(event, group[0]), words, type(event.msg_type), type(event.conv_type))
        rest = {
            name
            for name, (attribute, _, value, _) in TABLE.items()
            if name not in ("convType", "msgType") and getattr(event, attribute) != value
        }
        if found != (kind, True, [msg, msg, conv], group[1], ConvType) or rest:
            wrong[msg] = found, rest
    assert wrong == {}


def test_the_kinds_are_those_of_the_table():
    assert [*ConvType] == ["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]
    assert [*MsgType] == [*SAID]
    assert [*Notice] == [*NOTIFIED]
    assert [*ClientType] == CLIENTS
    everything = {kind.__name__ for kind in (*SAID.values(), *NOTIFIED.values())}
    assert class_names(Event) == everything | {"Event", "Message", "Notification", "UnknownEvent"}
    assert class_names(Notification) == {kind.__name__ for kind in NOTIFIED.values()} | {"Notification"}
    assert class_names(events.Text) == {"Text"}
    assert everything <= set(events.__all__)


def test_every_client_is_a_member():
    assert [type(read(fromClientType=text).from_client_type) for text in CLIENTS] == [ClientType] * len(CLIENTS)
    unknown = ["android", "Android  PAD", "HarmonyOS", "鸿蒙", " PC", "5"]
    found = [read(fromClientType=text).from_client_type for text in unknown]
    assert ([type(each) for each in found], found) == ([str] * len(unknown), unknown)  # kept as it is


def test_absent_null_and_empty_are_alike():
    wrong = {}
    for name, (attribute, _, _, default) in TABLE.items():
        absent = parse(bytes_of({each: value for each, value in SAMPLE.items() if each != name}))
        found = [(type(event), fields(event, "document")) for event in (absent, read(**{name: None}), read(**{name: ""}))]
        if getattr(absent, attribute) != default or not found[0] == found[1] == found[2]:
            wrong[name] = found
    assert wrong == {}


def test_no_accounts_in_any_shape():
    for nothing in ([], {}, [""], [None], ["", None], {"member": []}, {"member": ""}, {"member": None}):
        event = read(tMembers=nothing, atUser=nothing)
        assert (event.t_members, event.at_user) == ((), ()), nothing


def test_an_empty_object_is_an_event_as_well():
    """A sibling vendor probes new addresses with it."""
    event = parse(b"{}")
    assert type(event) is UnknownEvent
    assert event.document == {}
    assert event == UnknownEvent()
    for attribute, _, _, default in TABLE.values():
        assert getattr(event, attribute) == default


# ------------------------------------------------------------------------------------ unknown words


OF_ANOTHER_KIND = [
    *({"eventType": value} for value in ("2", "0", "01", "1 ", 2, True, ["1"], {"1": 1})),
    *({"convType": value} for value in ("SUPER_TEAM", "person", None, ["PERSON"], {}, 1)),
    *({"msgType": value} for value in ("CALL", "text", "", ["TEXT"], True)),
    *(
        {"convType": conv, "msgType": msg}
        for conv, msg in (("NOTIFY_TEAM", "TEXT"), ("PERSON", "TEAM_JOIN"), ("TEAM", "TEAM"))
    ),
]


def test_an_event_of_another_kind_keeps_the_whole_document():
    wrong = []
    for changed in OF_ANOTHER_KIND:
        document = {**SAMPLE, **changed, "newField": [1, {"a": None}]}
        event = parse(bytes_of(document))
        found = (type(event), event.document, event.body, event.from_account, event.extra)
        if found != (UnknownEvent, document, SAMPLE["body"], Account(APP_ID, "1001"), {"newField": [1, {"a": None}]}):
            wrong.append((changed, found))
    assert wrong == []
    assert not issubclass(UnknownEvent, (Message, Notification))


# What the fields of rbim's own classes are called, and what is internal to its converter: on the wire they mean nothing.
TAKEN = ["document", "extra", "rbim:extra", "event_type", "msgTimestampText", "msg_timestamp_text", "typeName", "self", ""]


@pytest.mark.parametrize("words", [{}, {"eventType": "2"}], ids=["known", "unknown"])
def test_a_field_that_the_description_does_not_know_is_in_extra_and_does_no_harm(words):
    plain, wrong = read(words), []
    assert plain.extra == {}
    for name in (*TAKEN, "newField", "新", "\0", "a.b"):
        for value in ("abc", 5, True, [], [1], {"a": 1}, [{"a": "b"}], "", None):
            document = {**SAMPLE, **words, name: value}
            event = parse(bytes_of(document))
            same = fields(event, "extra", "document") == fields(read(**words), "extra", "document")
            if (event.extra, event.document, same) != ({name: value}, document, True):
                wrong.append((name, value))
    assert wrong == []


# ------------------------------------------------------------------------------------- odd values

FLAGS = [
    *(("0", False), ("1", True), ("2", True), (" 1 ", True), (" 0 ", False), (" ", False), ("true", True), ("false", False)),
    *(("True", True), ("FALSE", False), (0, False), (1, True), (2, True), (True, True), (False, False)),
]


def test_flags_come_as_texts_numbers_and_booleans():
    names = ["resendFlag", "customSaveFlag", "customApnsFlag", "antispam"]
    table = [*FLAGS, *((value, False) for value in ("00", 0.0, [], {}))]  # convertible to an integer, or to a boolean
    wrong = []
    for value, flag in table:
        event = read(**dict.fromkeys(names, value))
        if [getattr(event, TABLE[name][0]) for name in names] != [flag] * 4:
            wrong.append((value, event))
    assert wrong == []


VERDICTS = [
    *(({"hit": True, "label": "ad"}, True), ({"hit": False, "label": "ad", "taskId": "t7"}, False), ({"is_spam": 1}, True)),
    *(({"isSpam": "0", "words": ["x"]}, False), ({"result": {"hit": "no"}}, False), ({"words": ["x"]}, True)),
    *(({"words": [], "level": 0}, False), ([False, True], True), ([0, "false"], False), ('{"hit": true}', True)),
    *(('{"hit": false, "label": "ad"}', False), ('"false"', False), ("[]", False), ("{}", False), ("{hit", True)),
]


def test_a_verdict_comes_as_an_object_and_as_json_in_a_text():
    found = [read(antispam=value) for value, _ in VERDICTS]
    assert [(event.document["antispam"], event.antispam) for event in found] == VERDICTS


A, B = Account(APP_ID, "1001"), Account(APP_ID, "1002")
SHAPES = [
    ([f"{APP_ID}#1001", f"{APP_ID}#1002"], (A, B)),
    ([f"{APP_ID}#1002", f"{APP_ID}#1001", f"{APP_ID}#1002"], (B, A, B)),
    ({"member": [f"{APP_ID}#1001", f"{APP_ID}#1002"]}, (A, B)),
    ({"member": f"{APP_ID}#1001"}, (A,)),
    (f"{APP_ID}#1001", (A,)),
    (["1001", 1002], (Account(None, "1001"), Account(None, "1002"))),
    (1001, (Account(None, "1001"),)),
    ([f"{APP_ID}#1001", None, ""], (A,)),
    ([0, False], (Account(None, "0"), Account(None, "false"))),
    (f'["{APP_ID}#1001", "{APP_ID}#1002"]', (A, B)),
    (f' {{"member": ["{APP_ID}#1001"]}}', (A,)),
    (f'"{APP_ID}#1001"', (A,)),
    ([f'["{APP_ID}#1001"]', f'{{"userName": "{APP_ID}#1002", "role": 2}}'], (A, B)),
    ([{"userName": f"{APP_ID}#1001", "nickName": "张三"}, {"user_account": f"{APP_ID}#1002", "role": "1"}], (A, B)),
    ({"members": [{"Account": f"{APP_ID}#1001", "id": 7}, {"Account": f"{APP_ID}#1002"}]}, (A, B)),
    ({"1": f"{APP_ID}#1001", "2": f"{APP_ID}#1002"}, (A, B)),
    ([[f"{APP_ID}#1001"], [[f"{APP_ID}#1002"]]], (A, B)),
    (json.dumps(json.dumps([f"{APP_ID}#1001"])), (A,)),
    ("[1001", (Account(None, "[1001"),)),
    ('["\\ud83d"]', (Account(None, "\ufffd"),)),
    ("[" * 5000 + "]" * 5000, (Account(None, "[" * 5000 + "]" * 5000),)),
]


def test_accounts_come_in_many_shapes():
    found = [read(tMembers=value, atUser=value) for value, _ in SHAPES]
    assert [(each.t_members, each.at_user) for each in found] == [(accounts, accounts) for _, accounts in SHAPES]
    assert {type(account) for each in found for account in (*each.t_members, *each.at_user)} == {Account}


ACCOUNTS = [
    *(
        (f"{APP_ID}#1001", APP_ID, "1001"),
        ("1001", None, "1001"),
        ("a#b#c", "a", "b#c"),
        ("a##c", "a", "#c"),
        ("", None, ""),
    ),
    *(
        ("#1001", "", "1001"),
        ("a#", "a", ""),
        ("#", "", ""),
        ("##", "", "#"),
        ("张三", None, "张三"),
        ("a\uff03b", None, "a\uff03b"),
    ),
]


def test_an_account_is_taken_apart_at_the_first_number_sign():
    found = [Account.of(text) for text, *_ in ACCOUNTS]
    assert [(str(each), each.app_id, each.user) for each in found] == ACCOUNTS
    assert [read(fromAccount=text).from_account for text, *_ in ACCOUNTS] == found


@settings(deadline=None, max_examples=50)
@given(text=st.text() | st.text("a#"))
def test_an_accounts_text_comes_back(text):
    account = Account.of(text)
    assert str(account) == text
    assert Account.of(str(account)) == account
    assert "#" not in (account.app_id or "")


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = [
    *(
        ("1767323045000", 1767323045000, MOMENT),
        (1767323045000, 1767323045000, MOMENT),
        (" 1767323045000 ", 1767323045000, MOMENT),
    ),
    ("1767323045", 1767323045, datetime(1970, 1, 21, 10, 55, 23, 45_000, tzinfo=UTC)),
    ("-1", -1, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    ("253402300799999", 253402300799999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    *((str(far), far, None) for far in (253402300800000, -62135596800001, 2**63 - 1, -(2**63))),
    *((far, far, None) for far in (10**40, -(10**40), 10**4000)),
    *(
        (no, None, None)
        for no in ("yesterday", "2026-01-02 03:04:05", "1e12", "17_67", "\u0661\u0667", "1" * 5000, 1.5, 1e300)
    ),
    *((no, None, None) for no in (True, [], {"a": 1})),
]


def test_a_time_may_be_any_long_integer():
    """And what cannot be read as one is no time, and keeps its text."""
    wrong = []
    for value, count, moment in TIMES:
        event = read(msgTimestamp=value)
        text = value if isinstance(value, str) else json.dumps(value)
        found = (*fields(event)["msg_timestamp"], event.sent_at, event.msg_timestamp_text)
        if found != (type(count), count, moment, text):
            wrong.append(found)
    assert wrong == []
    for thousandth in (1, 7, 999):
        assert read(msgTimestamp=str(1767323045000 + thousandth)).sent_at == MOMENT + timedelta(milliseconds=thousandth)


def test_a_text_that_is_none_becomes_its_json():
    names = [name for name, row in TABLE.items() if row[3] == "" and name != "eventType"]
    table = [(5, "5"), (1.5, "1.5"), (True, "true"), ({"a": "你"}, '{"a": "你"}'), ([1], "[1]"), (" ", " ")]
    for value, text in table:
        event = read(**dict.fromkeys(names, value))
        assert {name: getattr(event, TABLE[name][0]) for name in names} == dict.fromkeys(names, text)


# ------------------------------------------------------------------------------------------ values

EXAMPLES = [("TEAM", "TEXT"), ("NOTIFY_TEAM", "TEAM_JOIN"), ("NEW", "NEW")]


@pytest.mark.parametrize(("conv", "msg"), EXAMPLES)
def test_events_are_frozen_values_that_can_be_copied_and_pickled(conv, msg):
    event = read(convType=conv, msgType=msg, newField={"a": [1]})
    assert event == read(convType=conv, msgType=msg, newField={"a": [1]})
    for other in ({"newField": {"a": [2]}}, {}, {"newField": {"a": [1]}, "body": "other"}):
        assert event != read(convType=conv, msgType=msg, **other)
    copies = [pickle.loads(pickle.dumps(event, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*copies, copy.copy(event), copy.deepcopy(event), attrs.evolve(event)):
        assert type(again) is type(event)
        assert fields(again) == fields(event)
    changed = attrs.evolve(event, body="other", resend_flag=False)
    assert (type(changed), changed.body, changed.resend_flag, changed.to) == (type(event), "other", False, event.to)
    for name in ("body", "extra", "invented"):
        with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
            setattr(event, name, "other")
    assert type(event).__name__ in repr(event)
    one, same, other = (read(convType=conv, msgType=msg, msgId=number) for number in ("1", "1", "2"))
    assert hash(one) == hash(same)
    assert len({one, same, other}) == 2


# ------------------------------------------------------------------------------- nothing else is raised

NO_EVENTS = [
    *(
        b"",
        b" \n",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf" * 3 + b"{}",
        b"[]",
        b'"{}"',
        b"5",
        b"null",
        b"true",
        b"{}{}",
        b'{"a":1,}',
    ),
    *(
        b"{'a':1}",
        b"{a:1}",
        b"{} // a",
        b"eventType=1&convType=PERSON",
        b"<Request/>",
        bytes_of([SAMPLE]),
        bytes_of(SAMPLE)[:-1],
    ),
    *('{"body":"a"}'.encode("utf-16-le"), '{"body":"a"}'.encode("utf-16")[:-1]),
    *(b"{}\0", b'{"body":NaN}', b'{"x":-Infinity}', b'{"msgTimestamp":1e999}', b'{"x":[-1e999]}'),
    *(b'{"msgTimestamp":%b}' % (b"1" * 5000), b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    *(b'{"x":' * 100_000 + b"1" + b"}" * 100_000, b'{"x":[' * 50_000 + b"]}" * 50_000, b'{"tMembers":' + b"[" * 100_000),
    *(b'{"n":"\\ud800","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"body":"\\x41"}', b'{"body":"\\ud8"}'),
]
"""Other JSON, other formats, other encodings, numbers and nesting without end, half an escape."""


@each_row(
    "written, body",
    [
        ("你好\ud83d\ude00".encode("utf-8", "surrogatepass"), "你好😀"),  # CESU-8
        (b"\xed\xa0\xbd", "\ufffd"),
        ("你好".encode() + b"\xc0\xaf!", "你好\ufffd\ufffd!"),
        ("你好".encode("gbk"), "你好"),
        ("é".encode("latin-1"), "\ufffd"),
        ("你\n好\0\t".encode(), "你\n好\0\t"),
    ],
)
def test_a_copy_with_damaged_texts_is_read(written, body):
    assert parse(b'{"eventType":"1","body":"' + written + b'"}').body == body


def test_what_is_no_object_is_refused_with_its_bytes():
    for body in NO_EVENTS:
        with pytest.raises(CallbackRejected, match="cannot be read") as caught:
            pytest.fail(f"{body[:50]} is {parse(body)}")
        error = caught.value
        assert (error.reason, error.body, error.__cause__) == ("bad_format", body, None)
        assert len(str(error)) < 600


def survives(body):
    """Parse, and return the event, or None where the body was refused as it should be."""
    try:
        event = parse(body)
    except CallbackRejected as error:
        told = (error.reason, error.body)
    else:
        told = None
    if told is not None:
        assert told == ("bad_format", body)
        return None
    assert isinstance(event, Event)
    return event


@settings(deadline=None, max_examples=60)
@given(
    body=st.binary(max_size=60)
    | st.text(st.sampled_from('[]{}",:0123456789.eE+-truefalsn \\u\ud800'), max_size=20).map(
        lambda text: text.encode("utf-8", "replace")
    )
)
@example(body=b'{"a":1e400}')
def test_any_bytes_are_an_event_or_refused(body):
    survives(body)
    survives(b'{"tMembers":' + body + b"}")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["1", "", "TEAM", "PERSON", "TEXT", "a#b", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.sampled_from([*TABLE]), inner, max_size=4)
    ),
    max_leaves=10,
)
DOCUMENTS = st.dictionaries(
    st.sampled_from([*TABLE, "newField", "extra", "\ud83d"]) | st.text(max_size=6), JSON, max_size=12
)


def texts_in(value):
    """Yield every text inside an event's fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (key, *texts_in(each))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts_in(each)


@settings(deadline=None, max_examples=60)
@given(document=DOCUMENTS, escaped=st.booleans(), known=st.booleans())
def test_any_object_is_an_event_all_of_whose_texts_can_be_stored(document, escaped, known):
    if known:
        document = {**document, "eventType": "1", "convType": "TEAM", "msgType": "TEXT"}
    body = json.dumps(document, ensure_ascii=escaped).encode("utf-8", "replace")
    event = parse(body)
    assert type(event) is events.Text if known else isinstance(event, Event)
    for text in texts_in(attrs.asdict(event)):
        text.encode()
    assert type(event.from_account) is Account
    assert isinstance(event.conversation, str)
    assert event.group_id is None or isinstance(event.group_id, str)
    assert event.sent_at is None or event.sent_at.tzinfo is UTC
    assert event == parse(body)


HALVES = [
    *(
        ("\\ud83d", "\ufffd"),
        ("\\ude00", "\ufffd"),
        ("a\\ud83d", "a\ufffd"),
        ("\\ud83da", "\ufffda"),
        ("\\\\ud83d", "\\ud83d"),
    ),
    *(("\\ude00\\ud83d", "\ufffd\ufffd"), ("\\ud83d\\ud83d\\ude00", "\ufffd😀"), ("\\ud83d\\ude00\\ude00", "😀\ufffd")),
    *(("\\ud83d\\ude00", "😀"), ("😀\\uD83D", "😀\ufffd"), ("\\u4f60\\udfff\\u0000", "你\ufffd\0")),
]


def test_half_a_character_becomes_a_replacement_character():
    template = (
        '{"eventType":"1","convType":"TEAM","msgType":"TEXT","fromNick":"%s","fromAccount":"a#%s","tMembers":["%s",{"%s":"%s"}],'
        '"msgTimestamp":"%s","fromClientType":"%s","ext":{"%s":["%s"]},"x%s":{"y":[["%s"]]}}'
    )
    for escaped, text in HALVES:
        event = parse((template % ((escaped,) * template.count("%s"))).encode())
        whole = json.dumps({text: [text]}, ensure_ascii=False)
        found = (event.from_nick, event.from_account, event.t_members[0], event.msg_timestamp_text, event.from_client_type)
        assert found == (text, Account("a", text), Account(None, text), text, text)
        assert (type(event), event.ext, event.extra) == (events.Text, whole, {f"x{text}": {"y": [[text]]}})
        for each in texts_in(attrs.asdict(event)):
            each.encode()


def test_of_a_key_that_comes_twice_the_last_counts():
    event = parse(b'{"eventType":"2","eventType":"1","convType":"PERSON","convType":"TEAM","msgType":"TEXT","x":1,"x":2}')
    assert type(event) is events.Text
    assert event.conv_type is ConvType.TEAM
    assert event.extra == {"x": 2}
    assert parse(b'{"body":"a","body":null}').body == ""
    assert parse(b'{"b\\u006fdy":"a","body":"b"}').body == "b"


def test_a_byte_order_mark_says_the_encoding_and_escaped_is_the_same():
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert parse(bytes_of(SAMPLE).decode().encode(encoding)) == read()
        assert parse('{"body": "\\ud800"}'.encode(encoding)).body == "\ufffd"
    assert parse(json.dumps(SAMPLE).encode()) == read()
