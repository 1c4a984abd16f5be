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
from rbim import CallbackRejected, RbimError
from rbim._support import json as rbim_json
from rbim.callbacks.events import types as events
from rbim.callbacks.events.enums import ClientType, ConvType, MsgType, Notice
from rbim.callbacks.events.fields import Account
from rbim.callbacks.events.parsing import parse
from rbim.callbacks.events.types import Event, Message, Notification, UnknownEvent, class_names, event_class


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


@pytest.mark.parametrize("name", ["antispam", "customSaveFlag", "resendFlag", "body", "ext", "tMembers", "fromNick"])
def test_absent_null_and_empty_fields_can_be_told_apart(name):
    described = json.loads(bytes_of(read().document))
    without = {key: value for key, value in described.items() if key != name}
    events = [parse(bytes_of(document)) for document in (without, without | {name: None}, without | {name: ""})]
    assert events[0] == events[1] == events[2]  # in everyday reading they are equal
    assert hash(events[0]) == hash(events[1])
    assert [name in event.document for event in events] == [False, True, True]
    assert [event.document.get(name, "absent") for event in events] == ["absent", None, ""]


def test_the_document_is_what_came_and_no_field_of_the_platform_can_replace_it():
    sent = {"convType": "TEAM", "msgType": "TEXT", "resendFlag": "0", "rbim:document": {"to": "x"}, "new": [1]}
    event = parse(bytes_of(sent))
    assert type(event) is events.Text
    assert event.document == sent
    assert event.extra == {"new": [1]}
    assert "document" not in repr(event)


@pytest.mark.parametrize(("conv", "msg", "kind"), KINDS)
def test_every_kind_has_its_class_and_its_words_are_members(conv, msg, kind):
    event = read(convType=conv, msgType=msg)
    assert type(event) is kind
    assert isinstance(event, Notification if conv == "NOTIFY_TEAM" else Message)
    assert isinstance(event, Event)
    assert type(event).type_name == msg
    assert event.msg_type == msg
    assert event.conv_type == conv
    assert event.conv_type is ConvType(conv)
    for name, (attribute, _, value, _) in TABLE.items():
        if name not in ("convType", "msgType"):
            assert getattr(event, attribute) == value


def test_the_type_of_a_message_is_a_member_of_its_enum():
    found = {
        conv: {type(read(convType=conv, msgType=msg).msg_type) for each, msg, _ in KINDS if each == conv}
        for conv in ConvType
    }
    assert found == {conv: {Notice if conv == "NOTIFY_TEAM" else MsgType} for conv in ConvType}


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


@pytest.mark.parametrize("text", CLIENTS)
def test_every_client_is_a_member(text):
    client = read(fromClientType=text).from_client_type
    assert client is ClientType(text)


@pytest.mark.parametrize("text", ["android", "Android  PAD", "HarmonyOS", "鸿蒙", " PC", "5"])
def test_an_unknown_client_is_kept(text):
    client = read(fromClientType=text).from_client_type
    assert type(client) is str
    assert client == text


@pytest.mark.parametrize("name", TABLE)
def test_absent_null_and_empty_are_alike(name):
    attribute, _, _, default = TABLE[name]
    absent = parse(bytes_of({each: value for each, value in SAMPLE.items() if each != name}))
    expected = fields(absent, "document")
    for nothing in (None, ""):
        event = read(**{name: nothing})
        assert type(event) is type(absent)
        assert fields(event, "document") == expected
    assert getattr(absent, attribute) == default


@pytest.mark.parametrize("name", ["tMembers", "atUser"])
@pytest.mark.parametrize("nothing", [[], {}, [""], [None], ["", None], {"member": []}, {"member": ""}, {"member": None}])
def test_no_accounts_in_any_shape(name, nothing):
    assert getattr(read(**{name: nothing}), TABLE[name][0]) == ()


def test_an_empty_object_is_an_event_as_well():
    """A sibling vendor probes new addresses with it."""
    event = parse(b"{}")
    assert type(event) is UnknownEvent
    assert event.document == {}
    assert event == UnknownEvent()
    for attribute, _, _, default in TABLE.values():
        assert getattr(event, attribute) == default


# ------------------------------------------------------------------------------------ unknown words


@pytest.mark.parametrize(
    "changed",
    [
        {"eventType": "2"},
        {"eventType": "0"},
        {"eventType": "01"},
        {"eventType": "1 "},
        {"eventType": 2},
        {"eventType": True},
        {"eventType": ["1"]},
        {"eventType": {"1": 1}},
        {"convType": "SUPER_TEAM"},
        {"convType": "person"},
        {"convType": None},
        {"convType": ["PERSON"]},
        {"convType": {}},
        {"convType": 1},
        {"msgType": "CALL"},
        {"msgType": "text"},
        {"msgType": ""},
        {"msgType": ["TEXT"]},
        {"msgType": True},
        {"convType": "NOTIFY_TEAM", "msgType": "TEXT"},
        {"convType": "PERSON", "msgType": "TEAM_JOIN"},
        {"convType": "TEAM", "msgType": "TEAM_KICK"},
        {"convType": "TEAM", "msgType": "TEAM"},
    ],
    ids=str,
)
def test_an_event_of_another_kind_keeps_the_whole_document(changed):
    document = {**SAMPLE, **changed, "newField": [1, {"a": None}]}
    event = parse(bytes_of(document))
    assert type(event) is UnknownEvent
    assert event.document == document
    assert event.body == SAMPLE["body"]
    assert event.from_account == Account(APP_ID, "1001")
    assert event.extra == {"newField": [1, {"a": None}]}
    assert not isinstance(event, (Message, Notification))


def test_unknown_words_are_kept_as_the_texts_they_are():
    event = read(eventType="7", convType="SUPER_TEAM", msgType="CALL")
    assert fields(event)["event_type"] == (str, "7")
    assert fields(event)["conv_type"] == (str, "SUPER_TEAM")
    assert fields(event)["msg_type"] == (str, "CALL")


def test_a_number_says_what_kind_of_event_it_is_as_well():
    event = read(eventType=1)
    assert type(event) is events.At
    assert event.event_type == "1"


@settings(deadline=None)
@given(words=st.tuples(*[st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()) | st.just({})] * 3))
def test_any_words_have_a_class(words):
    assert issubclass(event_class(*words), Event)


# What the fields of rbim's own classes are called, and what is internal to its converter: on the wire they mean nothing.
TAKEN = ["document", "extra", "rbim:extra", "event_type", "msgTimestampText", "msg_timestamp_text", "typeName", "self", ""]


@pytest.mark.parametrize("kind", ["known", "unknown"])
@pytest.mark.parametrize("value", ["abc", 5, True, [], [1], {"a": 1}, [{"a": "b"}], "", None], ids=repr)
@pytest.mark.parametrize("name", [*TAKEN, "newField", "新", "\0", "a.b"])
def test_a_field_that_the_description_does_not_know_is_in_extra_and_does_no_harm(name, value, kind):
    words = {"eventType": "2"} if kind == "unknown" else {}
    plain = read(words)
    document = {**SAMPLE, **words, name: value}
    event = parse(bytes_of(document))
    assert event.extra == {name: value}
    assert fields(event, "extra", "document") == fields(read(**words), "extra", "document")
    if kind == "unknown":
        assert event.document == document
    assert plain.extra == {}


def test_several_unknown_fields_stay_together():
    assert read(a=1, b=[2], extra={"c": 3}).extra == {"a": 1, "b": [2], "extra": {"c": 3}}


# ------------------------------------------------------------------------------------- odd values

FLAGS = [
    *(("0", False), ("1", True), ("2", True), (" 1 ", True), (" 0 ", False), (" ", False), ("true", True), ("false", False)),
    *(("True", True), ("FALSE", False), (0, False), (1, True), (2, True), (True, True), (False, False)),
]


@pytest.mark.parametrize("name", ["resendFlag", "customSaveFlag", "customApnsFlag", "antispam"])
@pytest.mark.parametrize(("value", "flag"), FLAGS, ids=repr)
def test_flags_come_as_texts_numbers_and_booleans(name, value, flag):
    assert getattr(read(**{name: value}), TABLE[name][0]) is flag


@pytest.mark.parametrize("value", ["00", 0.0, [], {}], ids=repr)
def test_zero_and_nothing_written_otherwise_set_no_flag(value):
    """Described as convertible to an integer, or to a boolean."""
    event = read(resendFlag=value, antispam=value)
    assert (event.resend_flag, event.antispam) == (False, False)


VERDICTS = [
    ({"hit": True, "label": "ad"}, True),
    ({"hit": False, "label": "ad", "taskId": "t7"}, False),
    ({"isSpam": "0", "words": ["x"]}, False),
    ({"is_spam": 1}, True),
    ({"result": {"hit": "no"}}, False),
    ({"words": ["x"]}, True),
    ({"words": [], "level": 0}, False),
    ([False, True], True),
    ([0, "false"], False),
    ('{"hit": false, "label": "ad"}', False),
    ('{"hit": true}', True),
    ('"false"', False),
    ("[]", False),
    ("{}", False),
    ("{hit", True),
]


@pytest.mark.parametrize(("value", "flag"), VERDICTS, ids=repr)
def test_a_verdict_comes_as_an_object_and_as_json_in_a_text(value, flag):
    event = read(antispam=value)
    assert event.antispam is flag
    assert event.document["antispam"] == value


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


@pytest.mark.parametrize("name", ["tMembers", "atUser"])
@pytest.mark.parametrize(("value", "accounts"), SHAPES, ids=[str(number) for number in range(len(SHAPES))])
def test_accounts_come_in_many_shapes(name, value, accounts):
    got = getattr(read(**{name: value}), TABLE[name][0])
    assert got == accounts
    assert all(type(account) is Account for account in got)


ACCOUNTS = [
    (f"{APP_ID}#1001", APP_ID, "1001"),
    ("1001", None, "1001"),
    ("a#b#c", "a", "b#c"),
    ("a##c", "a", "#c"),
    ("#1001", "", "1001"),
    ("a#", "a", ""),
    ("#", "", ""),
    ("##", "", "#"),
    ("", None, ""),
    ("张三", None, "张三"),
    ("a\uff03b", None, "a\uff03b"),
]


@pytest.mark.parametrize(("text", "app_id", "user"), ACCOUNTS)
def test_an_account_is_taken_apart_at_the_first_number_sign(text, app_id, user):
    account = Account.of(text)
    assert (account.app_id, account.user) == (app_id, user)
    assert str(account) == text
    assert read(fromAccount=text).from_account == account


@settings(deadline=None)
@given(text=st.text() | st.text("a#"))
def test_an_accounts_text_comes_back(text):
    account = Account.of(text)
    assert str(account) == text
    assert Account.of(str(account)) == account
    assert "#" not in (account.app_id or "")


def test_accounts_are_values():
    assert len({Account.of("a#b"), Account("a", "b"), Account.of("b")}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Account.of("a").user = "b"
    assert copy.deepcopy(Account.of("a#b")) == pickle.loads(pickle.dumps(Account.of("a#b"))) == Account("a", "b")


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = [
    ("1767323045000", 1767323045000, MOMENT),
    (1767323045000, 1767323045000, MOMENT),
    (" 1767323045000 ", 1767323045000, MOMENT),
    ("1767323045", 1767323045, datetime(1970, 1, 21, 10, 55, 23, 45_000, tzinfo=UTC)),
    ("0", 0, datetime(1970, 1, 1, tzinfo=UTC)),
    ("-1", -1, datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    ("253402300799999", 253402300799999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    ("253402300800000", 253402300800000, None),
    ("-62135596800001", -62135596800001, None),
    (10**40, 10**40, None),
    (-(10**40), -(10**40), None),
    (10**4000, 10**4000, None),
    ("yesterday", None, None),
    ("2026-01-02 03:04:05", None, None),
    ("1e12", None, None),
    ("17_67", None, None),
    ("\u0661\u0667\u0666\u0667", None, None),
    ("1" * 5000, None, None),
    (1.5, None, None),
    (1e300, None, None),
    (True, None, None),
    ([], None, None),
    ({"a": 1}, None, None),
]


@pytest.mark.parametrize(("value", "count", "moment"), TIMES, ids=lambda value: str(value)[:30])
def test_times_that_can_be_read_and_times_that_cannot(value, count, moment):
    event = read(msgTimestamp=value)
    assert fields(event)["msg_timestamp"] == (type(count), count)
    assert event.sent_at == moment
    text = event.msg_timestamp_text
    assert text == (value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize("text", ["9223372036854775807", "-9223372036854775808"])
def test_a_time_may_be_any_long_integer(text):
    """Described as a long integer carried as text: those of the platform's language have up to 19 digits."""
    event = read(msgTimestamp=text)
    assert event.msg_timestamp == int(text)
    assert event.sent_at is None


def test_a_moment_keeps_its_milliseconds():
    for thousandth in (1, 7, 999):
        assert read(msgTimestamp=str(1767323045000 + thousandth)).sent_at == MOMENT + timedelta(milliseconds=thousandth)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[3] == "" and name != "eventType"])
@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (1.5, "1.5"), (True, "true"), ({"a": "你"}, '{"a": "你"}'), ([1], "[1]"), (" ", " ")],
    ids=repr,
)
def test_a_text_that_is_none_becomes_its_json(name, value, text):
    assert getattr(read(**{name: value}), TABLE[name][0]) == text


# ------------------------------------------------------------------------------------------ values

EXAMPLES = [(conv, msg) for conv, msg, _ in KINDS] + [("NEW", "NEW")]
examples = pytest.mark.parametrize(("conv", "msg"), EXAMPLES)


@examples
def test_events_are_frozen_values_that_can_be_copied_and_pickled(conv, msg):
    event = read(convType=conv, msgType=msg, newField={"a": [1]})
    assert event == read(convType=conv, msgType=msg, newField={"a": [1]})
    assert event != read(convType=conv, msgType=msg, newField={"a": [2]})
    assert event != read(convType=conv, msgType=msg)
    assert event != read(convType=conv, msgType=msg, newField={"a": [1]}, body="other")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(event, protocol))
        assert type(again) is type(event)
        assert fields(again) == fields(event)
    for copied in (copy.copy(event), copy.deepcopy(event), attrs.evolve(event)):
        assert type(copied) is type(event)
        assert fields(copied) == fields(event)
        assert copied == event
    changed = attrs.evolve(event, body="other", resend_flag=False)
    assert type(changed) is type(event)
    assert (changed.body, changed.resend_flag, changed.to) == ("other", False, event.to)
    for name in ("body", "extra", "invented"):
        with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
            setattr(event, name, "other")
    with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
        del event.body
    assert not hasattr(event, "__dict__")
    assert type(event).__name__ in repr(event)


def test_events_can_be_kept_in_sets():
    """As the answers of operations can."""
    for conv, msg in EXAMPLES:
        kept_in_sets(conv, msg)


def kept_in_sets(conv, msg):
    one, same, other = (read(convType=conv, msgType=msg, msgId=number) for number in ("1", "1", "2"))
    assert hash(one) == hash(same)
    assert len({one, same, other}) == 2


def test_events_of_different_classes_differ():
    assert events.Text(body="a") == events.Text(body="a")
    assert events.Text(body="a") != events.Picture(body="a")
    assert events.Text(body="a") != "a"
    with pytest.raises(TypeError):
        events.Text("1")


def test_defaults_are_not_shared():
    assert events.Text().extra is not events.Text().extra
    assert UnknownEvent().document is not UnknownEvent().document


# ------------------------------------------------------------------------------- nothing else is raised

NO_EVENTS = {
    "nothing": b"",
    "white space": b" \n",
    "a byte order mark": b"\xef\xbb\xbf",
    "three of them": b"\xef\xbb\xbf" * 3 + b"{}",
    "an array": b"[]",
    "an array of events": bytes_of([SAMPLE]),
    "a text": b'"{}"',
    "a number": b"5",
    "null": b"null",
    "true": b"true",
    "cut off": bytes_of(SAMPLE)[:-1],
    "two documents": b"{}{}",
    "a comma": b'{"a":1,}',
    "quotes": b"{'a':1}",
    "no quotes": b"{a:1}",
    "a comment": b"{} // a",
    "a form": b"eventType=1&convType=PERSON",
    "XML": b"<Request/>",
    "Latin-1": '{"body":"é"}'.encode("latin-1"),
    "UTF-16 without a mark": '{"body":"a"}'.encode("utf-16-le"),
    "half of UTF-16": '{"body":"a"}'.encode("utf-16")[:-1],
    "GBK": '{"body":"你好"}'.encode("gbk"),
    "surrogates in UTF-8": b'{"body":"\xed\xa0\xbd"}',
    "overlong UTF-8": b'{"body":"\xc0\xaf"}',
    "a key that is no UTF-8": b'{"\xff":1}',
    "a control character": b'{"body":"a\nb"}',
    "NUL": b'{"body":"a\0b"}',
    "NUL behind": b"{}\0",
    "NaN": b'{"body":NaN}',
    "infinity": b'{"x":-Infinity}',
    "1e999": b'{"msgTimestamp":1e999}',
    "-1e999": b'{"x":[-1e999]}',
    "too many digits": b'{"msgTimestamp":%b}' % (b"1" * 5000),
    "arrays without end": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects without end": b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    "both without end": b'{"x":[' * 50_000 + b"]}" * 50_000,
    "unclosed without end": b'{"tMembers":' + b"[" * 100_000,
    "without end and escaped": b'{"n":"\\ud800","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a bad escape": b'{"body":"\\x41"}',
    "half an escape": b'{"body":"\\ud8"}',
}


@pytest.mark.parametrize("body", NO_EVENTS.values(), ids=NO_EVENTS)
def test_what_is_no_object_is_refused_with_its_bytes(body):
    with pytest.raises(CallbackRejected, match="cannot be read") as caught:
        parse(body)
    error = caught.value
    assert error.reason == "bad_format"
    assert error.body == body
    assert isinstance(error, RbimError)
    assert error.__cause__ is None
    assert len(str(error)) < 600
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason, again.body) == (str(error), error.reason, body)


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


DEEP = [*TABLE, "newField"]


@pytest.mark.parametrize("depth", [100, 500, 900, 950, 980, 1000, 1015, 1022, 1100, 3000, 9000])
@pytest.mark.parametrize("shape", ["[]", "{}", "[{}]"])
@pytest.mark.parametrize("escaped", [False, True])
def test_no_depth_of_nesting_raises_anything_else(depth, shape, escaped):
    left, right = {"[]": ("[", "]"), "{}": ('{"a":', "}"), "[{}]": ('[{"a":', "}]")}[shape]
    inside = left * depth + "1" + right * depth
    raised = set()
    for name in DEEP:
        nick = '"fromNick":"\\ud83d",' if escaped and name != "fromNick" else ""
        try:
            survives(f'{{{nick}"{name}":{inside}}}'.encode())
        except RecursionError as error:
            raised.add((name, type(error).__name__))
    assert raised == set()


@settings(deadline=None)
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


@settings(deadline=None)
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
    assert pickle.loads(pickle.dumps(event)) == event


HALVES = [
    ("\\ud83d", "\ufffd"),
    ("\\ude00", "\ufffd"),
    ("a\\ud83d", "a\ufffd"),
    ("\\ud83da", "\ufffda"),
    ("\\ude00\\ud83d", "\ufffd\ufffd"),
    ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
    ("\\ud83d\\ude00\\ude00", "😀\ufffd"),
    ("\\ud83d\\ude00", "😀"),
    ("😀\\uD83D", "😀\ufffd"),
    ("\\u4f60\\udfff\\u0000", "你\ufffd\0"),
    ("\\\\ud83d", "\\ud83d"),
]


@pytest.mark.parametrize(("escaped", "text"), HALVES)
def test_half_a_character_becomes_a_replacement_character(escaped, text):
    template = (
        '{"eventType":"1","convType":"TEAM","msgType":"TEXT","fromNick":"%s","fromAccount":"a#%s","tMembers":["%s",{"%s":"%s"}],'
        '"msgTimestamp":"%s","fromClientType":"%s","ext":{"%s":["%s"]},"x%s":{"y":[["%s"]]}}'
    )
    event = parse((template % ((escaped,) * template.count("%s"))).encode())
    assert type(event) is events.Text
    assert event.from_nick == text
    assert event.from_account == Account("a", text)
    assert event.t_members[0] == Account(None, text)
    assert event.msg_timestamp_text == text
    assert event.from_client_type == text
    assert event.ext == json.dumps({text: [text]}, ensure_ascii=False)
    assert event.extra == {f"x{text}": {"y": [[text]]}}
    for each in texts_in(attrs.asdict(event)):
        each.encode()


def test_half_a_character_in_a_word_makes_it_unknown_and_whole():
    event = parse(b'{"eventType":"1","convType":"TEAM\\ud800","msgType":"\\udc00TEXT","to":"\\ud83d"}')
    assert type(event) is UnknownEvent
    assert event.document == {"eventType": "1", "convType": "TEAM\ufffd", "msgType": "\ufffdTEXT", "to": "\ufffd"}


def test_of_a_key_that_comes_twice_the_last_counts():
    event = parse(b'{"eventType":"2","eventType":"1","convType":"PERSON","convType":"TEAM","msgType":"TEXT","x":1,"x":2}')
    assert type(event) is events.Text
    assert event.conv_type is ConvType.TEAM
    assert event.extra == {"x": 2}
    assert parse(b'{"body":"a","body":null}').body == ""
    assert parse(b'{"b\\u006fdy":"a","body":"b"}').body == "b"


def test_a_byte_order_mark_and_white_space_do_no_harm():
    assert parse(b"\xef\xbb\xbf \r\n" + bytes_of(SAMPLE) + b"\t\n") == read()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding(encoding):
    assert parse(bytes_of(SAMPLE).decode().encode(encoding)) == read()
    assert parse('{"body": "\\ud800"}'.encode(encoding)).body == "\ufffd"


def test_escaped_and_written_out_is_the_same():
    assert parse(json.dumps(SAMPLE).encode()) == read()
