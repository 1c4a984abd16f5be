"""Whom an invitation reached, by any list of failures: nothing of it is lost, and nobody is called invited too soon."""

import json
import re
from contextlib import suppress

import pytest
from hypothesis import example, given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from helpers.tables import each_row
from rbim import Dialect, Outcome, ProtocolError, Response
from rbim._support import json as rbim_json
from rbim.operations.groups import InviteJoinGroup
from rbim.wire.codec import Codec

CODEC = Codec(app_id="app", base_url="https://host:8883", dialect=Dialect(), clock=FixedClock())
THREE = ("1", "2", "3")


def decoded(body, status=200, members=THREE):
    return CODEC.decode(InviteJoinGroup(group_id="g1", members=members), Response(status, {}, body))


def invited(fails, *members, name="fails", **beside):
    return decoded(json.dumps({"statusCode": "000000", name: fails, **beside}).encode(), members=members or THREE)


@each_row(
    "fails, refused",
    [
        ([{"member": "2", "reason": "r"}], {"2": "r"}),
        ({"2": "why"}, {"2": "why"}),
        ([{"2": "why"}, {"3": None}], {"2": "why", "3": ""}),
        ({"2": {"reason": "why", "code": 7}, "3": {"code": 8}}, {"2": "why", "3": '{"code": 8}'}),
        ({"2": ["why", "so"]}, {"2": '["why", "so"]'}),
        ({"app#2": 7}, {"2": "7"}),
        ("1,2,3", {"1": "", "2": "", "3": ""}),
        ("1\uff0c2", {"1": "", "2": ""}),
        (" 1; 2 ", {"1": "", "2": ""}),
        ({"fail": {"member": ["1", "2"], "reason": "r"}}, {"1": "r", "2": "r"}),
        ({"fail": {"member": "1,2", "reason": "r"}}, {"1": "r", "2": "r"}),
        ({"member": [1, 2]}, {"1": "", "2": ""}),
        ([{"Member": "1"}], {"1": ""}),
        ([{"MEMBER": "1", "Reason": "r"}], {"1": "r"}),
        ([{"userName": "1", "msg": "m"}], {"1": "m"}),
        ({"fail": [{"userName": "1"}], "count": "1"}, {"1": ""}),
        ({"fail": [{"member": "1"}, {"member": "3"}], "count": 2}, {"1": "", "3": ""}),
        ({"fail": [{"member": "1"}], "2": "why"}, {"1": "", "2": "why"}),
        ({"fail": [{"member": "1"}], "2": None, "next": None}, {"1": "", "2": ""}),
        ({"3": []}, {"3": "[]"}),
        ({"list": [{"member": "1", "reason": "r"}]}, {"1": "r"}),
        ([["1"], [["2"]]], {"1": "", "2": ""}),
        (["app#1", " 2 ", " APP#3\t"], {"1": "", "2": "", "3": ""}),
        ([1, 2.0], {"1": ""}),
        ([{"member": "1", "reason": "a"}, {"member": "app#1", "reason": "b"}], {"1": "a"}),
        ([{"member": {"userName": "1"}}], {"1": ""}),
        (False, {}),
        (0, {}),
        ([], {}),
        ({"fail": []}, {}),
    ],
)
@each_row("name", ["fails", "fail", "Fails"])
def test_an_account_is_refused_under_any_of_its_names(fails, refused, name):
    answer = invited(fails, name=name)
    assert answer.refused == refused
    left = tuple(each for each in THREE if each not in refused)
    sure = fails != [1, 2.0]
    assert (answer.invited, answer.unknown) == ((left, ()) if sure else ((), left))


@each_row(
    "fails",
    [
        [{"reason": "r"}],
        {"fail": {"reason": "r"}},
        [{"member": "9"}],
        "1,2,9",
        [{"member": "other#1"}],
        {"9": "why"},
        {"why": "1"},
        [{"operator": "1", "reason": "r"}],
        [{"member": "1", "reason": "r", "fail": [{"member": "2"}]}],
        [{"member": "1", "reason": "r", "others": ["2"]}],
        [{"member": "1"}, {"reason": "r"}],
        {"fail": [{"member": "1"}], "count": "2"},
        {"fail": [{"member": "1"}], "9": None, "code": 7},
        {"9": None},
        {"list": []},
        {"ok": ["1"], "bad": ["2"]},
        {"1": "2"},
        True,
        7,
        [False],
        "not one of them",
    ],
)
def test_nobody_is_invited_while_an_entry_names_nobody(fails):
    answer = invited(fails)
    assert answer.invited == ()
    assert answer.unattributed
    assert {*answer.refused, *answer.unknown} == set(THREE)
    assert answer.fails  # "if not answer.fails" is no success


def test_a_name_without_its_case_is_taken_where_only_one_account_has_it():
    answer = invited(["ALICE", "bob", "BOB", "Carol "], "Alice", "bob", "BOB", "carol", "dan")
    assert answer.refused == dict.fromkeys(["Alice", "bob", "BOB", "carol"], "")
    assert answer.invited == ("dan",)
    answer = invited(["Bob"], "bob", "BOB", "dan")
    assert (answer.refused, answer.unknown) == ({}, ("bob", "BOB", "dan"))


def test_a_prefix_of_the_request_counts_as_little_as_one_of_the_answer():
    assert invited(["1"], "app#1", "2").refused == {"app#1": ""}
    assert invited(["app#1"], "app#1", "1").refused == {"app#1": ""}
    assert invited([" app#1"], "app#1", "1").refused == {"app#1": ""}
    assert invited(["APP#1"], "app#1", "1").unknown == ("app#1", "1")  # it may be either


def test_an_account_may_have_a_comma_or_a_blank_in_its_name():
    assert invited(["1,2", "a b"], "1,2", "1", "2", "a b").refused == {"1,2": "", "a b": ""}


def test_what_the_platform_wrote_is_kept_beside_the_account():
    [fail] = invited([{"Member": " app#1", "reason": "r", "code": 7}]).fails
    assert (fail.member, fail.account, fail.reason, fail.extra) == (" app#1", "1", "r", {"code": 7})


@each_row(
    "beside",
    [
        {"failList": ["2"]},
        {"FAILED": "2"},
        {"failCount": 1},
        {"failCount": "1"},
        {"memberFailures": {"2": "why"}},
        {"data": {"fails": [{"member": "2", "reason": "r"}]}},
        {"data": {"failList": ["2"], "failCount": 0}},
        {"data": [{}, {"isFailed": True}]},
        {"data": {"result": {"fails": ["2"]}}},
    ],
)
def test_nobody_is_invited_while_a_field_under_another_name_tells_of_failures(beside):
    answer = invited([], **beside)
    assert (answer.invited, answer.unknown, answer.refused) == ((), THREE, {})
    assert [fail.account for fail in answer.fails] == [None]
    assert answer.extra == beside
    answer = invited([{"member": "1", "reason": "r"}], **{**beside, "failCount": 7})
    assert (answer.invited, answer.unknown, answer.refused) == ((), ("2", "3"), {"1": "r"})


@each_row(
    "beside",
    [
        {"failList": []},
        {"failed": False, "failCount": 0},
        {"failCount": "0", "failReason": "", "failedMembers": None},
        {"data": {"fails": [], "failCount": "0", "failed": {}}},
        {"data": [[], 1, "fail"], "note": "1 failed"},
    ],
)
def test_a_field_that_tells_of_no_failure_leaves_everybody_invited(beside):
    answer = invited([], **beside)
    assert (answer.invited, answer.unknown, answer.fails) == (THREE, (), ())
    assert answer.extra == beside


def test_a_long_text_is_not_copied_to_each_of_many_entries():
    """Else an answer of 300 kB took a gigabyte."""
    accounts = [str(number) for number in range(3000)]
    answer = invited([{"member": accounts, "reason": {"x": "y" * 300_000}}])
    assert (len(answer.fails), answer.unknown) == (1, THREE)
    [fail] = invited([], **{"x" * 300_000: {f"fail{number}": 1 for number in accounts}}).fails
    assert len(json.dumps(fail.to_dict())) < 300_000


def test_a_count_that_agrees_with_the_entries_is_no_failure_of_its_own():
    for beside in ({"failCount": 1}, {"failCount": "1"}, {"data": {"failCount": 1}}):
        answer = invited(["4"], "4", "5", **beside)
        assert (answer.invited, answer.refused) == (("5",), {"4": ""})


TWICE = [
    '{"statusCode":"112310","statusCode":"000000"}',
    '{"statusCode":"000000","statusCode":"000000"}',
    '{"statusCode":"000000","code":"112310","code":"000000"}',
    '{"statusCode":"000000","statusC\\u006fde":"000000"}',
    '{"statusCode":"000000","\\u0063ode":"112310","code":"0"}',
    '{"statusCode":"000000","fails":["1"],"fails":[]}',
    '{"statusCode":"000000","fails":[],"fails":[]}',
    '{"statusCode":"000000","f\\u0061ils":["1"],"fails":[]}',
    '{"statusCode":"000000","\\u0066\\u0041\\u0049\\u004Cs":["1"],"fAILs":[]}',
    '{"statusCode":"000000","failList":["1"],"failList":[]}',
    '{"statusCode":"000000","data":{"fails":["1"],"fails":[]}}',
    '{"statusCode":"000000","data":{"fails":["1"]},"data":{}}',
    '{"statusCode":"000000","fails":{"fail":"1","fail":"2"}}',
    '{"statusCode":"000000","fails":[{"member":"1","member":"2"}]}',
    '{"statusCode":"000000","data":{"code":"1","code":"2"}}',
]


@each_row("status", [200, 404, 500])
@each_row("body", TWICE)
def test_an_answer_that_has_a_deciding_key_twice_is_not_read(body, status, monkeypatch):
    for parser in (rbim_json.orjson, None):
        monkeypatch.setattr(rbim_json, "orjson", parser)
        for charset in ("utf-8", "utf-8-sig", "gb18030"):
            text = body if charset != "gb18030" else f'{body[:-1]},"statusMsg":"群组"}}'
            with pytest.raises(ProtocolError, match="twice") as caught:
                decoded(text.encode(charset), status)
            assert (caught.value.outcome, caught.value.status) == (Outcome.UNKNOWN, status)


@each_row(
    "body",
    [
        '{"statusCode":"000000","name":"a","name":"b"}',
        '{"statusCode":"000000","data":{"statusCode":"1"},"code":7,"x":[{"code":1},{"code":2}]}',
        '{"statusCode":"000000","statusMsg":"\\u0066\\u0061il \\u00e9 \\"code\\" \\"code\\"","x":"code","y":"code"}',
    ],
)
def test_another_key_twice_or_the_same_key_in_other_objects_is_read(body):
    assert decoded(body.encode()).invited == THREE


# ------------------------------------------------------------------------------------ anything at all

NAMES = st.sampled_from([*THREE, "app#1", " 2", "9", "alice", "1,2", "2;9", "", "false"])
KEYS = st.sampled_from(
    ["member", "Member", "reason", "fail", "fails", "FAIL", "userName", "msg", "count", "x", "1", "app#2"]
)
JSON = st.recursive(
    NAMES | st.text(max_size=5) | st.integers(0, 4) | st.booleans() | st.none() | st.just(1.5),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), values, max_size=4),
    max_leaves=12,
)


def scalars(value):
    """Return the values in a JSON document that hold information, as text."""
    if isinstance(value, dict):
        return [each for value in value.values() for each in scalars(value)]
    if isinstance(value, list):
        return [each for value in value for each in scalars(value)]
    return [] if value is None or value == "" else [value if isinstance(value, str) else json.dumps(value)]


def texts(answer):
    """Return all that an answer holds, as texts; those that are JSON themselves also as what they hold."""
    held = [answer.extra, *([fail.member, fail.reason, fail.extra] for fail in answer.fails)]
    found = set()
    for each in held:
        for text in scalars(each):
            found |= {text, *text.split(",")}
            with suppress(ValueError):
                found.update(scalars(json.loads(text)))
    return found


def pieces_of(text):
    """Return what stands between the separators of accounts."""
    return set(re.split("[,;]", text)) - {""}


@settings(max_examples=150, deadline=None)
@example(fails="1,", name="fails")
@example(fails=";", name="fails")
@example(fails=["1;2,", ","], name="fail")
@given(fails=JSON, name=st.sampled_from(["fails", "fail"]))
def test_whatever_the_list_holds_is_in_the_answer_and_each_account_has_one_state(fails, name):
    answer = invited(fails, name=name)
    held = texts(answer)
    pieces = {piece for text in held for piece in pieces_of(text)}
    assert [text for text in scalars(fails) if text not in held and not pieces_of(text) <= pieces] == []
    assert sorted([*answer.invited, *answer.refused, *answer.unknown]) == sorted(THREE)
    if any(fail.account is None for fail in answer.fails):
        assert answer.invited == ()
    else:
        assert answer.unknown == ()
    if set(scalars(fails)) - {"0", "false"}:
        assert answer.fails


def names(value):
    """Return the texts in a JSON document that are neither reasons nor counts."""
    if isinstance(value, dict):
        return [each for key, value in value.items() if key not in NO_NAMES for each in names(value)]
    return [each for value in value for each in names(value)] if isinstance(value, list) else [value]


NO_NAMES = {"reason", "msg", "count", *THREE, "app#2"}


@settings(max_examples=150, deadline=None)
@given(fails=JSON)
def test_nobody_is_invited_whom_the_list_names_anywhere(fails):
    """Whatever an entry looks like: an account whose name stands in it as a value of its own is not reported as invited."""
    assert not set(invited(fails).invited) & {each for each in names(fails) if isinstance(each, str)}
