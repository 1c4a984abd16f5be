"""What a delivery is filed under: the same key for every copy of one event, another for any other, and its conversation."""

import copy
import json
import pickle
import re
from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from helpers.credentials import APP_ID, CREDENTIALS, OTHER_APP
from helpers.deliveries import bytes_of
from rbim import AsyncClient, GroupType
from rbim._support import json as rbim_json
from rbim.callbacks.delivery import Delivery, delivery_of
from rbim.callbacks.events import types as events
from rbim.callbacks.events.enums import ConvType
from rbim.callbacks.events.fields import Account
from rbim.callbacks.events.types import Event, UnknownEvent
from rbim.callbacks.signature import Verified, verify
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.copies.messages import CopiedMessage

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

PERSON = {
    "eventType": "1",
    "convType": "PERSON",
    "to": "1002",
    "fromAccount": f"{APP_ID}#1001",
    "msgTimestamp": "1767323045000",
    "msgType": "TEXT",
    "body": "你好",
    "msgId": "m80000070010001",
}
TEAM = {**PERSON, "convType": "TEAM", "to": "g1", "tMembers": [f"{APP_ID}#1002", f"{APP_ID}#1003"]}
PUSH = {**TEAM, "convType": "CUSTOM_PERSON", "to": "REST"}
NOTICE = {**TEAM, "convType": "NOTIFY_TEAM", "msgType": "TEAM_JOIN"}
KINDS = {"PERSON": PERSON, "TEAM": TEAM, "CUSTOM_PERSON": PUSH, "NOTIFY_TEAM": NOTICE}
kinds = pytest.mark.parametrize("document", KINDS.values(), ids=KINDS)


def filed(body, app_id=APP_ID):
    return delivery_of(bytes_of(body) if isinstance(body, dict) else body, app_id=app_id, received=NOW)


def without(document, *names):
    return {name: value for name, value in document.items() if name not in names}


def on_both_roads(function):
    """Return what the function returns with orjson and with the standard library."""
    found = [function()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rbim_json, "orjson", None)
        found.append(function())
    return found


# ------------------------------------------------------------------------------- what a delivery is


@kinds
def test_a_delivery_has_everything_that_its_handling_needs(document):
    body = bytes_of(document)
    delivery = filed(body)
    assert (delivery.body, delivery.app_id, delivery.received, delivery.problem) == (body, APP_ID, NOW, None)
    assert delivery.event.body == "你好"
    assert re.fullmatch("[0-9a-f]{32}", delivery.key)
    assert delivery.conversation.startswith(f"{APP_ID}/")
    assert filed(body) == delivery
    assert pickle.loads(pickle.dumps(delivery)) == copy.deepcopy(delivery) == delivery
    with pytest.raises(AttributeError):
        delivery.key = ""
    with pytest.raises(TypeError):
        Delivery(delivery.key)


# --------------------------------------------------------------------------------- copies of one event


@kinds
@pytest.mark.parametrize("identified", [True, False], ids=["with msgId", "without"])
def test_a_resend_has_the_key_of_the_original(document, identified):
    document = document if identified else without(document, "msgId")
    original = filed(document)
    for flag in ("1", "0", "", None, 1, True, "2"):
        resend = filed({**document, "resendFlag": flag})
        assert (resend.key, resend.conversation) == (original.key, original.conversation)
        first = filed({"resendFlag": flag, **dict(reversed(document.items()))})
        assert (first.key, first.conversation) == (original.key, original.conversation)


@kinds
@pytest.mark.parametrize("identified", [True, False], ids=["with msgId", "without"])
def test_the_order_of_fields_and_how_they_are_written_do_not_matter(document, identified):
    document = document if identified else without(document, "msgId")
    original = filed(document)
    backwards = dict(reversed(document.items()))
    for body in (
        bytes_of(backwards),
        json.dumps(document).encode(),
        json.dumps(document, indent=2).encode(),
        json.dumps(backwards, separators=(",", ":")).encode(),
        b"\xef\xbb\xbf" + bytes_of(document) + b"\r\n",
        b'{"resendFlag":"1","to":"x",' + bytes_of(document)[1:],
    ):
        assert (filed(body).key, filed(body).conversation) == (original.key, original.conversation)


@settings(deadline=None)
@given(order=st.permutations(list(PUSH)))
def test_any_order_has_the_same_key(order):
    assert filed({name: PUSH[name] for name in order}).key == filed(PUSH).key
    anonymous = {name: PUSH[name] for name in order if name != "msgId"}
    assert filed(anonymous).key == filed(without(PUSH, "msgId")).key


# ------------------------------------------------------------------------------------------ other events


@kinds
def test_another_event_has_another_key(document):
    others = [
        filed(document),
        filed(document, OTHER_APP),
        filed({**document, "msgId": "m80000070010002"}),
        filed({**document, "msgId": 80000070010001}),
        filed({**document, "convType": "CUSTOM_TEAM"}),
        filed({**document, "convType": "NEW"}),
        filed(without(document, "convType")),
        filed({**document, "msgType": "PICTURE"}),
        filed({**document, "msgType": "NEW"}),
        filed(without(document, "msgType")),
        filed({**document, "to": "g2"}),
        filed(without(document, "to")),
        filed(without(document, "msgId")),
    ]
    assert len({delivery.key for delivery in others}) == len(others)


def test_an_event_of_another_event_type_has_another_key():
    """Which other values there are is not shown: that something else happened to a message is no copy of the message."""
    keys = {filed({**PERSON, "eventType": number}).key for number in ("1", "2", "3")}
    bare = {filed({"eventType": number, "msgId": PERSON["msgId"]}).key for number in ("1", "2", "3")}
    assert (len(keys), len(bare)) == (3, 3)


def test_pushes_of_one_id_to_other_receivers_have_other_keys():
    both, reversed_ = [f"{APP_ID}#1002", f"{APP_ID}#1003"], [f"{APP_ID}#1003", f"{APP_ID}#1002"]
    keys = [
        filed({**PUSH, "tMembers": members}).key
        for members in (both, both[:1], both[1:], ["1002", "1003"], ["1002"], ["10021003"], [], [*both, f"{APP_ID}#1004"])
    ]
    assert len(set(keys)) == len(keys)
    assert filed({**PUSH, "tMembers": reversed_}).key == filed({**PUSH, "tMembers": {"member": both}}).key == keys[0]


@pytest.mark.parametrize("document", [PERSON, TEAM, NOTICE], ids=["PERSON", "TEAM", "NOTIFY_TEAM"])
def test_of_other_events_the_id_is_enough(document):
    assert filed({**document, "tMembers": ["1009"]}).key == filed(document).key
    assert filed({**document, "body": "x", "msgTimestamp": "5", "fromNick": "a"}).key == filed(document).key


def test_without_an_id_the_content_tells_events_apart():
    document = without(TEAM, "msgId")
    others = [
        document,
        {**document, "body": "x"},
        {**document, "msgTimestamp": "1767323045001"},
        {**document, "tMembers": document["tMembers"][:1]},
        {**document, "ext": {"resendFlag": "1"}},
        {**document, "ext": {"resendFlag": "0"}},
        {**document, "ResendFlag": "1"},
        {**document, "x": 1},
        {**document, "x": "1"},
        {**document, "x": None},
        {},
    ]
    assert len({filed(other).key for other in others}) == len(others)
    assert filed({**document, "msgId": ""}).event.msg_id == filed({**document, "msgId": None}).event.msg_id == ""
    assert filed(document).key != filed(document, OTHER_APP).key


TEXTS = st.text("ab1:#|/", max_size=4)
PARTS = st.fixed_dictionaries(
    {
        "msgId": TEXTS.filter(bool),
        "convType": TEXTS | st.sampled_from(["PERSON", "CUSTOM_PERSON"]),
        "msgType": TEXTS,
        "to": TEXTS,
        "tMembers": st.lists(TEXTS.filter(bool), max_size=3),
    }
)


def identity(app_id, parts):
    receivers = tuple(sorted(parts["tMembers"])) if parts["convType"] == "CUSTOM_PERSON" else ()
    return (app_id, parts["msgId"], parts["convType"], parts["msgType"], parts["to"], receivers)


@settings(deadline=None, max_examples=200)
@given(apps=st.tuples(TEXTS, TEXTS), one=PARTS, two=PARTS)
@example(
    apps=("a", "a"),
    one={"msgId": "a", "convType": "", "msgType": "", "to": "bc", "tMembers": []},
    two={"msgId": "ab", "convType": "", "msgType": "", "to": "c", "tMembers": []},
)
@example(
    apps=("a", "a"),
    one={"msgId": "a", "convType": "CUSTOM_PERSON", "msgType": "", "to": "b", "tMembers": ["c"]},
    two={"msgId": "a", "convType": "CUSTOM_PERSON", "msgType": "", "to": "b1:c", "tMembers": []},
)
def test_keys_are_equal_only_where_all_parts_are(apps, one, two):
    keys = [filed(parts, app_id).key for app_id, parts in zip(apps, (one, two), strict=True)]
    assert (keys[0] == keys[1]) == (identity(apps[0], one) == identity(apps[1], two))


@settings(deadline=None)
@given(document=PARTS, more=TEXTS.filter(bool), data=st.data())
def test_nothing_can_be_shifted_from_one_part_to_another(document, more, data):
    document = {**document, "convType": "CUSTOM_PERSON", "tMembers": ["a", "b"]}
    places = ["msgId", "msgType", "to"]
    one, two = data.draw(st.permutations(places))[:2]
    left, right = {**document, one: document[one] + more}, {**document, two: more + document[two]}
    assume(identity(APP_ID, left) != identity(APP_ID, right))
    assert filed(left).key != filed(right).key


# ------------------------------------------------------------------------------------------ conversations


def conversation(document, /, **changed):
    return filed({**document, **changed}).conversation


def test_both_directions_between_two_accounts_are_one_conversation():
    there = conversation(PERSON)
    back = conversation(PERSON, to="1001", fromAccount=f"{APP_ID}#1002")
    assert there == back == f"{APP_ID}/person/1001|1002"
    assert conversation(PERSON, fromAccount="1001") == there
    assert conversation(PUSH, tMembers=[f"{APP_ID}#1002"]) == there
    assert conversation(PUSH, tMembers=[f"{APP_ID}#1001"], fromAccount=f"{APP_ID}#1002") == there
    assert conversation(PERSON, msgType="NEW") == there
    others = [conversation(PERSON, to="1003"), conversation(PERSON, fromAccount=f"{APP_ID}#1003"), conversation(PUSH)]
    assert len({there, *others}) == 4


@settings(deadline=None)
@given(one=st.text("ab1", min_size=1), two=st.text("ab1", min_size=1), app=st.sampled_from([APP_ID, None]))
def test_any_two_accounts_are_in_one_conversation_either_way(one, two, app):
    def said(sender, to):
        return conversation(PERSON, fromAccount=sender if app is None else f"{app}#{sender}", to=to)

    assert said(one, two) == said(two, one)


def test_whatever_happens_in_a_group_is_one_conversation():
    team = conversation(TEAM)
    assert team == f"{APP_ID}/team/g1"
    assert conversation(TEAM, convType="CUSTOM_TEAM", fromAccount="bot") == conversation(NOTICE, tMembers=["1009"]) == team
    assert conversation(NOTICE, msgType="TEAM_NEW") == conversation(TEAM, msgType="NEW") == team
    assert conversation(TEAM, to="g2") != team
    assert conversation(PERSON, to="g1") != team
    assert conversation(PERSON, to="1001", fromAccount="g1") != team


def test_who_pushes_to_several_is_in_one_conversation_with_rest():
    several = conversation(PUSH)
    assert several == conversation(PUSH, tMembers=["1", "2", "3"])
    assert several != conversation(PUSH, fromAccount="1009")
    assert several == f"{APP_ID}/person/1001|REST"


def test_applications_share_no_conversation():
    for document in KINDS.values():
        assert filed(document, OTHER_APP).conversation != filed(document).conversation


@pytest.mark.parametrize("document", [{}, {"msgId": "1"}, {"eventType": "2", "body": "x"}, {"convType": "PERSON"}], ids=str)
def test_what_belongs_to_no_conversation_is_one_of_its_own(document):
    delivery = filed(document)
    assert delivery.conversation == delivery.key
    assert delivery.event.conversation == ""


@pytest.mark.parametrize("kind", ["TEAM", "CUSTOM_TEAM", "NOTIFY_TEAM"])
def test_a_group_that_is_not_named_is_no_conversation(kind):
    delivery = filed({**TEAM, "convType": kind, "to": ""})
    assert delivery.event.conversation == ""
    assert delivery.conversation == delivery.key


def test_an_event_knows_its_group():
    assert [filed(document).event.group_id for document in (TEAM, NOTICE, PERSON, PUSH)] == ["g1", "g1", None, None]


# ------------------------------------------------------------------------------------------ quarantine


@kinds
def test_a_sender_of_another_application_is_a_problem(document):
    delivery = filed({**document, "fromAccount": f"{OTHER_APP}#1001"})
    assert delivery.problem.startswith("app_mismatch: ")
    assert APP_ID in delivery.problem
    assert OTHER_APP in delivery.problem
    assert delivery.event.from_account == Account(OTHER_APP, "1001")
    assert delivery.app_id == APP_ID
    assert delivery.key == filed(document).key
    assert delivery.conversation == filed(document).conversation
    assert filed({**document, "fromAccount": f"{OTHER_APP}#1001"}, OTHER_APP).problem is None


@pytest.mark.parametrize("sender", ["1001", "", None, f"{APP_ID}#", f"{APP_ID}#1001", f"{APP_ID}#{OTHER_APP}#1001", 1001])
def test_a_sender_without_an_application_is_none(sender):
    assert filed({**PERSON, "fromAccount": sender}).problem is None
    assert filed(without(PERSON, "fromAccount")).problem is None


def test_receivers_of_another_application_are_none():
    assert (
        filed({**TEAM, "tMembers": [f"{OTHER_APP}#1"], "atUser": [f"{OTHER_APP}#1"], "to": f"{OTHER_APP}#1"}).problem is None
    )


def test_a_problem_is_one_short_line_whatever_the_sender_is_called():
    """As that of a body that cannot be read is."""
    problem = filed({**PERSON, "fromAccount": "a\nb" * 100_000 + "#1"}).problem
    assert "\n" not in problem
    assert len(problem) < 600


UNREADABLE = [b"", b"junk", b"[]", b"null", b"{", b"\xff", b'{"a":1e999}', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]


@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: repr(body[:12]))
def test_what_cannot_be_read_is_kept_with_its_problem(body):
    delivery = filed(body)
    assert delivery.event is None
    assert "cannot be read" in delivery.problem
    assert delivery.body == body
    assert delivery.conversation == delivery.key
    assert re.fullmatch("[0-9a-f]{32}", delivery.key)
    assert filed(body) == delivery
    assert filed(body, OTHER_APP).key != delivery.key
    assert filed(body + b" ").key != delivery.key


def test_what_cannot_be_read_is_told_apart_by_its_bytes():
    assert len({filed(body).key for body in UNREADABLE}) == len(UNREADABLE)


# ------------------------------------------------------------------------------------------ nothing raises

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("member"), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(["1", "TEAM", "PERSON", "CUSTOM_PERSON", "TEXT", "TEAM_JOIN", "\ud800", "a#b#c", ""])
NAMES = st.sampled_from([*PUSH, "resendFlag", "atUser", "extra", "x", "\ud83d"])
DOCUMENTS = st.dictionaries(NAMES, JSON | WORDS, max_size=11)


@settings(deadline=None)
@given(document=DOCUMENTS, app_id=st.sampled_from([APP_ID, "", "a"]), escaped=st.booleans())
@example(document={"eventType": "2", "x": {"\ud83d": ["\ud800"]}}, app_id=APP_ID, escaped=True)
def test_any_object_has_a_delivery_the_same_on_both_roads(document, app_id, escaped):
    body = json.dumps(document, ensure_ascii=escaped).encode("utf-8", "replace")
    fast, slow = on_both_roads(lambda: filed(body, app_id))
    assert fast == slow
    event = fast.event
    assert isinstance(event, Event)
    assert fast.kind is type(event)
    assert (fast.msg_type, fast.resent) == (str(event.msg_type or ""), event.resend_flag)
    assert fast.conversation == (f"{app_id}/{event.conversation}" if event.conversation else fast.key)
    for text in (fast.key, fast.conversation, fast.problem or ""):
        text.encode()
    assert re.fullmatch("[0-9a-f]{32}", fast.key)


@settings(deadline=None)
@given(body=st.binary(max_size=40) | st.text('[]{}",:0129.eE+-ntrue \\u', max_size=20).map(str.encode))
def test_any_bytes_have_a_delivery_the_same_on_both_roads(body):
    fast, slow = on_both_roads(lambda: filed(body))
    assert (fast.event is None) == (fast.problem is not None and "cannot be read" in fast.problem)
    assert fast == slow


@pytest.mark.parametrize("field", ["x", "to", "tMembers", "fromAccount", "msgId", "ext", "convType"])
@pytest.mark.parametrize("identified", [True, False], ids=["with msgId", "without"])
def test_no_depth_of_nesting_raises(field, identified):
    raised = []
    start = b'{"msgId":"1",' if identified and field != "msgId" else b"{"
    start += b'"convType":"CUSTOM_PERSON",' if field == "tMembers" else b""
    for depth in (100, 500, 900, 950, 980, 1000, 1020, 2000, 9000):
        for left, right in ((b"[", b"]"), (b'{"a":', b"}")):
            try:
                delivery = filed(start + b'"%b":' % field.encode() + left * depth + b"1" + right * depth + b"}")
                assert (delivery.event is None) == (delivery.problem is not None)
            except RecursionError:
                raised.append((depth, left))
    assert raised == []


@pytest.mark.parametrize("value", ["abc", 5, [1], {"a": 1}, None], ids=repr)
def test_an_unknown_event_with_a_document_of_its_own_has_a_delivery(value):
    document = {"eventType": "2", "msgId": "1", "document": value}
    assert filed(document).event.document == document


# --------------------------------------------------------- what the emulator writes, from the table alone


class Receiver:
    """Verifies what it is given, files it, and answers as it was told."""

    def __init__(self, emulator, *statuses):
        self.emulator = emulator
        self.statuses = list(statuses)
        self.deliveries = []

    async def receive(self, headers, body):
        now = self.emulator.clock.now()
        assert isinstance(verify(headers, body, credentials=CREDENTIALS, now=now), Verified)
        self.deliveries.append(delivery_of(body, app_id=APP_ID, received=now))
        return self.statuses.pop(0) if self.statuses else 200

    @property
    def events(self):
        return [delivery.event for delivery in self.deliveries]


def copied_to_a_function(*statuses, mode="normal"):
    emulator = Emulator(credentials=CREDENTIALS, clock=EmulatedClock())
    receiver = Receiver(emulator, *statuses)
    emulator.copy_to(receiver.receive, mode)
    return emulator, receiver


SAID = ["TEXT", "PICTURE", "AUDIO", "VIDEO", "LOCATION", "FILE", "FILE_COMPRESS", "LINK", "AT"]
NOTIFIED = [
    *("TEAM_APPLY", "TEAM_INVITE", "TEAM_JOIN", "TEAM_DISMISS", "TEAM_QUIT", "TEAM_KICK", "TEAM_APPLY_ACCEPT"),
    *("TEAM_INVITE_ACCEPT", "TEAM_APPLY_REJECT", "TEAM_INVITE_REJECT", "TEAM_UPDATE", "TEAM_MEMBER_UPDATE"),
    *("TEAM_ADD_ADMIN", "TEAM_ROLE_UPDATE"),
]


def class_of(word):
    return getattr(events, "".join(part.title() for part in word.split("_")))


async def group_in(emulator):
    client = AsyncClient(
        base_url="http://emulator",
        credentials=CREDENTIALS,
        clock=emulator.clock,
        dialect=emulator.dialect,
        transport=emulator,
    )
    async with client:
        created = await client.groups.create(name="a", type=GroupType.VIP, user_name="1001")
        await client.groups.invite(group_id=created.group_id, members=["1002", "1003"], user_name="1001")
    return created.group_id


async def test_what_the_emulator_says_arrives_as_what_it_is():
    emulator, receiver = copied_to_a_function()
    group_id = await group_in(emulator)
    await emulator.deliver()
    assert [type(event) for event in receiver.events] == [events.TeamJoin]
    receiver.deliveries.clear()
    for word in SAID:
        emulator.say("1001", "1002", "a", msg_type=word)
        emulator.say("1001", group_id, "b", msg_type=word)
        emulator.push(["1002", "1003"], "c", msg_type=word)
        emulator.push("1002", "d", sender="1001", msg_type=word)
        emulator.push(group_id, "e", msg_type=word)
    await emulator.deliver()
    found = {(event.conv_type, event.body, type(event)) for event in receiver.events}
    where = [("PERSON", "a"), ("TEAM", "b"), ("CUSTOM_PERSON", "c"), ("CUSTOM_PERSON", "d"), ("CUSTOM_TEAM", "e")]
    assert found == {(conv, text, class_of(word)) for conv, text in where for word in SAID}
    assert len(receiver.deliveries) == len({delivery.key for delivery in receiver.deliveries}) == 5 * len(SAID)
    assert all(delivery.problem is None and not delivery.event.extra for delivery in receiver.deliveries)
    conversations = {event.body: event.conversation for event in receiver.events}
    assert conversations["a"] == conversations["d"] == "person/1001|1002"
    assert conversations["b"] == conversations["e"] == f"team/{group_id}"
    assert {len(event.t_members) for event in receiver.events if event.body in "be"} == {2, 3}


async def test_what_happens_to_the_emulators_groups_arrives_as_what_it_is():
    emulator, receiver = copied_to_a_function()
    for word in NOTIFIED:
        emulator.notify("g80000000000001", word, ["1002"], actor="1001", text="x")
    await emulator.deliver()
    assert [type(event) for event in receiver.events] == [class_of(word) for word in NOTIFIED]
    for delivery in receiver.deliveries:
        assert delivery.event.t_members == (Account(APP_ID, "1002"),)
        assert delivery.event.from_account == Account(APP_ID, "1001")
        assert delivery.event.group_id == "g80000000000001"
        assert delivery.conversation == f"{APP_ID}/team/g80000000000001"


async def test_every_field_that_the_emulator_writes_is_read():
    emulator, receiver = copied_to_a_function()
    emulator.push(
        ["1002", "1003"],
        "你好 🎉",
        sender="bot",
        msg_type="LINK",
        attach="https://files.example/1.jpg",
        ext='{"a":1}',
        at_user=["1002"],
        nick="小王",
        client_type="Android PAD",
        device_id="d-1",
        link_info="<title>",
        antispam=True,
        save=True,
        apns=False,
        apns_text="new",
    )
    await emulator.deliver()
    (event,) = receiver.events
    assert event == events.Link(
        conv_type="CUSTOM_PERSON",
        to="REST",
        from_account=Account(APP_ID, "bot"),
        from_client_type="Android PAD",
        from_device_id="d-1",
        from_nick="小王",
        msg_timestamp=1767323045000,
        msg_timestamp_text="1767323045000",
        msg_type="LINK",
        body="你好 🎉",
        attach="https://files.example/1.jpg",
        msg_id="m80000070010001",
        custom_save_flag=True,
        custom_apns_text="new",
        t_members=(Account(APP_ID, "1002"), Account(APP_ID, "1003")),
        at_user=(Account(APP_ID, "1002"),),
        ext='{"a":1}',
        link_info="<title>",
        antispam=True,
    )
    assert event.sent_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_the_emulators_resends_are_copies_of_one_event():
    emulator, receiver = copied_to_a_function(500, 503, 500, mode="high-guarantee")
    emulator.say("1001", "1002", "a")
    await emulator.advance(hours=1)
    assert [event.resend_flag for event in receiver.events] == [False, True, True, True]
    assert len({delivery.key for delivery in receiver.deliveries}) == 1
    assert len({delivery.conversation for delivery in receiver.deliveries}) == 1
    assert len({delivery.body for delivery in receiver.deliveries}) == 2


async def test_what_the_emulator_copies_raw_is_filed_as_it_is():
    emulator, receiver = copied_to_a_function()
    for body in ({}, {"eventType": "9", "x": 1}, b"junk", b"[]", {**PERSON, "fromAccount": f"{OTHER_APP}#1"}):
        emulator.copy_raw(body)
    await emulator.deliver()
    probe, unknown, junk, array, foreign = receiver.deliveries
    assert type(probe.event) is type(unknown.event) is UnknownEvent
    assert unknown.event.document == {"eventType": "9", "x": 1}
    assert junk.event is array.event is None
    assert foreign.problem.startswith("app_mismatch")
    assert probe.problem is unknown.problem is None


@pytest.mark.parametrize("word", SAID)
def test_a_message_of_the_emulators_is_read_without_it_as_well(word):
    message = CopiedMessage(conv_type=ConvType.PERSON, to="1002", sender="1001", msg_type=word, text="a")
    for conv in (ConvType.PERSON, ConvType.TEAM, ConvType.CUSTOM_PERSON, ConvType.CUSTOM_TEAM, ConvType.NOTIFY_TEAM):
        body = bytes_of(attrs.evolve(message, conv_type=conv, members=("1002",)).body(app_id=APP_ID, msg_id="1", sent=NOW))
        event = filed(body).event
        assert type(event) is (UnknownEvent if conv == "NOTIFY_TEAM" else class_of(word))
        assert event.sent_at == NOW
