"""What a delivery is filed under: the same key for every copy of one event, another for any other, and its conversation."""

import copy
import json
import pickle
import re
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings, strategies as st

from helpers.credentials import APP_ID, OTHER_APP
from helpers.deliveries import bytes_of
from rbim._support import json as rbim_json
from rbim.callbacks.delivery import Delivery, delivery_of
from rbim.callbacks.events import Account, Event

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
BOTH = [*KINDS.values(), *({name: value for name, value in kind.items() if name != "msgId"} for kind in KINDS.values())]
"""Each kind with an msgId, and without."""


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


def test_a_delivery_has_everything_that_its_handling_needs():
    for document in KINDS.values():
        body = bytes_of(document)
        delivery = filed(body)
        assert (delivery.body, delivery.app_id, delivery.received, delivery.problem) == (body, APP_ID, NOW, None)
        assert delivery.event.body == "你好"
        assert re.fullmatch("[0-9a-f]{32}", delivery.key)
        assert delivery.conversation.startswith(f"{APP_ID}/")
        assert filed(body) == pickle.loads(pickle.dumps(delivery)) == copy.deepcopy(delivery) == delivery
    with pytest.raises(AttributeError):
        delivery.key = ""
    with pytest.raises(TypeError):
        Delivery(delivery.key)


# --------------------------------------------------------------------------------- copies of one event


def filed_under(body):
    delivery = filed(body)
    return delivery.key, delivery.conversation


def test_a_resend_has_the_key_of_the_original():
    for document in BOTH:
        for flag in ("1", "0", "", None, 1, True, "2"):
            backwards = {"resendFlag": flag, **dict(reversed(document.items()))}
            assert filed_under({**document, "resendFlag": flag}) == filed_under(backwards) == filed_under(document)


def test_the_order_of_fields_and_how_they_are_written_do_not_matter():
    for document in BOTH:
        backwards = dict(reversed(document.items()))
        bodies = [
            bytes_of(backwards),
            json.dumps(document).encode(),
            json.dumps(document, indent=2).encode(),
            json.dumps(backwards, separators=(",", ":")).encode(),
            b"\xef\xbb\xbf" + bytes_of(document) + b"\r\n",
            b'{"resendFlag":"1","to":"x",' + bytes_of(document)[1:],
        ]
        assert {filed_under(body) for body in bodies} == {filed_under(document)}


# ------------------------------------------------------------------------------------------ other events


def test_an_event_of_another_event_type_has_another_key():
    """Which other values there are is not shown: that something else happened to a message is no copy of the message."""
    keys = {filed({**PERSON, "eventType": number}).key for number in ("1", "2", "3")}
    bare = {filed({"eventType": number, "msgId": PERSON["msgId"]}).key for number in ("1", "2", "3")}
    assert (len(keys), len(bare)) == (3, 3)


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


@settings(deadline=None, max_examples=100)
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


@settings(deadline=None, max_examples=50)
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


def test_what_belongs_to_no_conversation_is_one_of_its_own():
    unnamed = [{**TEAM, "convType": kind, "to": ""} for kind in ("TEAM", "CUSTOM_TEAM", "NOTIFY_TEAM")]
    for document in ({}, {"msgId": "1"}, {"eventType": "2", "body": "x"}, {"convType": "PERSON"}, *unnamed):
        delivery = filed(document)
        assert delivery.conversation == delivery.key
        assert delivery.event.conversation == ""


def test_an_event_knows_its_group():
    assert [filed(document).event.group_id for document in (TEAM, NOTICE, PERSON, PUSH)] == ["g1", "g1", None, None]


# ------------------------------------------------------------------------------------------ quarantine


def test_a_sender_of_another_application_is_a_problem():
    for document in KINDS.values():
        delivery = filed({**document, "fromAccount": f"{OTHER_APP}#1001"})
        assert delivery.problem.startswith("app_mismatch: ")
        assert APP_ID in delivery.problem
        assert OTHER_APP in delivery.problem
        assert (delivery.event.from_account, delivery.app_id) == (Account(OTHER_APP, "1001"), APP_ID)
        assert (delivery.key, delivery.conversation) == filed_under(document)
        assert filed({**document, "fromAccount": f"{OTHER_APP}#1001"}, OTHER_APP).problem is None


def test_a_sender_without_an_application_and_receivers_of_another_one_are_none():
    for sender in ("1001", "", None, f"{APP_ID}#", f"{APP_ID}#1001", f"{APP_ID}#{OTHER_APP}#1001", 1001):
        assert filed({**PERSON, "fromAccount": sender}).problem is None
    assert filed(without(PERSON, "fromAccount")).problem is None
    other = f"{OTHER_APP}#1"
    assert filed({**TEAM, "tMembers": [other], "atUser": [other], "to": other}).problem is None


UNREADABLE = [b"", b"junk", b"[]", b"null", b"{", b"\xff", b'{"a":1e999}', b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]


def test_what_cannot_be_read_is_kept_with_its_problem_and_told_apart_by_its_bytes():
    for body in UNREADABLE:
        delivery = filed(body)
        assert (delivery.event, delivery.body, delivery.conversation) == (None, body, delivery.key)
        assert "cannot be read" in delivery.problem
        assert re.fullmatch("[0-9a-f]{32}", delivery.key)
        assert filed(body) == delivery
        assert delivery.key not in {filed(body, OTHER_APP).key, filed(body + b" ").key}
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


@settings(deadline=None, max_examples=50)
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


@settings(deadline=None, max_examples=50)
@given(body=st.binary(max_size=40) | st.text('[]{}",:0129.eE+-ntrue \\u', max_size=20).map(str.encode))
def test_any_bytes_have_a_delivery_the_same_on_both_roads(body):
    fast, slow = on_both_roads(lambda: filed(body))
    assert (fast.event is None) == (fast.problem is not None and "cannot be read" in fast.problem)
    assert fast == slow
