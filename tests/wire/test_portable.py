"""Operations, answers and errors as JSON documents and back, also through another JSON library; never with a secret."""

import inspect
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import attrs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers.credentials import CREDENTIALS, TOKEN
from helpers.strategies import operations, texts
from rbim import (
    ApiError,
    AsyncClient,
    Attempt,
    CallTaskCreated,
    Fail,
    GroupOperation,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    Method,
    Namespace,
    Outcome,
    ProtocolError,
    QueryGroupDetail,
    Role,
    SetMemberRole,
    Success,
    Throttled,
    errors,
)
from rbim.emulator import Emulator
from rbim.operations import catalogue
from rbim.operations.base import fields_of, operation
from rbim.operations.groups import Created, GroupDetail, GroupFound, GroupsFound, Invited, Permission, Target
from rbim.wire import portable
from rbim.wire.portable import (
    answer_from_json,
    answer_to_json,
    error_from_json,
    error_to_json,
    operation_from_json,
    operation_to_json,
)

KINDS = [entry.operation for entry in catalogue.entries() if entry.operation.__module__.startswith("rbim.")]
EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def through(document):
    """Write with one library and read with the other; both give the same."""
    read = orjson.loads(json.dumps(document))
    assert read == json.loads(orjson.dumps(document)) == document
    return read


# ------------------------------------------------------------------------------ operations


def test_there_are_eleven_operations():
    assert len(KINDS) == 11


@pytest.mark.parametrize("kind", KINDS)
@EXAMPLES
@given(data=st.data())
def test_every_operation_comes_back_equal(kind, data):
    given_one = data.draw(operations(kind))
    document = through(operation_to_json(given_one))
    assert (document["rbim"], document["operation"]) == (1, kind.spec.name)
    assert document["values"].keys() == {each.name for each in fields_of(kind)}
    found = operation_from_json(document)
    assert type(found) is kind
    assert found == given_one
    assert repr(found) == repr(given_one), "of the same types all through"


def test_an_operation_in_words():
    assert operation_to_json(SetMemberRole(group_id="g1", member="1001", role=Role.ADMINISTRATOR)) == {
        "rbim": 1,
        "operation": "SetMemberRole",
        "values": {"user_name": None, "group_id": "g1", "member": "1001", "role": "1"},
    }


def test_a_text_that_utf_8_cannot_encode_survives_the_standard_library():
    given_one = QueryGroupDetail(group_id="\ud800")
    assert operation_from_json(json.loads(json.dumps(operation_to_json(given_one)))) == given_one


WRONG = [
    (None, "an object is needed, not NoneType"),
    ([], "an object is needed, not list"),
    ({}, "version None is unknown, this rbim reads version 1"),
    ({"rbim": 2, "operation": "QueryGroupDetail"}, "version 2 is unknown"),
    ({"rbim": True, "operation": "QueryGroupDetail"}, "version True is unknown"),
    ({"rbim": 1}, "unknown operation None"),
    ({"rbim": 1, "operation": "os.system"}, "unknown operation 'os.system': import the module"),
    ({"rbim": 1, "operation": "QueryGroupDetail"}, "values: an object"),
    ({"rbim": 1, "operation": "QueryGroupDetail", "values": {}}, "values: cannot be read as QueryGroupDetail"),
    ({"rbim": 1, "operation": "QueryGroupDetail", "values": {"group_id": 7}}, "str is needed, not int"),
    ({"rbim": 1, "operation": "QueryGroupDetail", "values": {"group_id": ""}}, "group_id"),
    ({"rbim": 1, "operation": "QueryGroupDetail", "values": {"group_id": "g", "new": 1}}, "has no field 'new' here"),
]


@pytest.mark.parametrize(("document", "said"), WRONG)
def test_a_document_that_is_none_is_refused_with_the_cause(document, said):
    with pytest.raises(InvalidRequest) as refused:
        operation_from_json(document)
    assert said in str(refused.value)


def test_a_pickle_is_never_read():
    assert "pickle" not in inspect.getsource(portable)
    with pytest.raises(InvalidRequest):
        operation_from_json(pickle.dumps(QueryGroupDetail(group_id="g")))


def test_an_operation_in_no_namespace_has_no_name_to_be_found_by():
    @operation("Lonely")
    @attrs.frozen(kw_only=True)
    class Lonely(GroupOperation[Success]):
        group_id: str

    with pytest.raises(InvalidRequest, match="Lonely is in no namespace"):
        operation_to_json(Lonely(group_id="g"))


def test_an_operation_of_ones_own_is_found_once_it_is_declared():
    @operation("MuteGroup")
    @attrs.frozen(kw_only=True)
    class MuteGroup(GroupOperation[Success]):
        group_id: str
        minutes: float = 1.0

    class Muting(Namespace):
        mute = Method(MuteGroup)

    given_one = MuteGroup(group_id="g", minutes=3)
    assert operation_from_json(through(operation_to_json(given_one))) == given_one
    Muting.mute = None
    del MuteGroup, Muting


# ------------------------------------------------------------------------------ answers

PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts()
EXTRA = st.dictionaries(
    texts(8), st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(5), inner, max_size=3))
)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=8)), ZoneInfo("Asia/Shanghai"), ZoneInfo("Europe/Berlin")])
MOMENTS = st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=ZONES)  # noqa: DTZ001  # the zone is given beside
FAILS = st.builds(Fail, member=texts(), reason=texts(), extra=EXTRA, account=st.none() | texts())
SEVERAL = st.lists(texts(), max_size=3).map(tuple)


def choices(kind):
    """A value of an enum, a text that is in none, or nothing."""
    return st.none() | st.sampled_from(kind) | st.text("xyz789", min_size=1, max_size=3)


FOUND = st.builds(
    GroupFound,
    group_id=texts(),
    name=texts(),
    type=choices(GroupType),
    count=st.none() | st.integers(0, 10**6),
    count_text=texts(),
    permission=choices(Permission),
    extra=EXTRA,
)
ANSWERS = {
    Success: st.builds(Success, extra=EXTRA),
    Created: st.builds(Created, group_id=texts(), extra=EXTRA),
    CallTaskCreated: st.builds(CallTaskCreated, task_id=texts(), extra=EXTRA),
    Invited: st.builds(Invited, invited=SEVERAL, unknown=SEVERAL, fails=st.lists(FAILS, max_size=3).map(tuple), extra=EXTRA),
    GroupsFound: st.builds(GroupsFound, groups=st.lists(FOUND, max_size=3).map(tuple), extra=EXTRA),
    GroupDetail: st.builds(
        GroupDetail,
        name=texts(),
        owner=texts(),
        declared=texts(),
        count=st.none() | st.integers(0, 10**6),
        count_text=texts(),
        date_created=st.none() | MOMENTS,
        date_created_text=texts(),
        permission=choices(Permission),
        target=choices(Target),
        type=choices(GroupType),
        group_domain=st.none() | texts(),
        extra=EXTRA,
    ),
}


def test_every_answer_is_tried():
    assert ANSWERS.keys() == {kind.spec.answer for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@EXAMPLES
@given(data=st.data())
def test_every_answer_comes_back_equal(kind, data):
    answer = data.draw(ANSWERS[kind.spec.answer])
    found = answer_from_json(json.loads(json.dumps(answer_to_json(kind, answer))))
    assert found == answer
    assert [getattr(found, each.name) for each in fields_of(type(answer))] == [
        getattr(answer, each.name) for each in fields_of(type(answer))
    ], "with the fields that do not count as equal or not"
    if isinstance(answer, GroupDetail) and answer.date_created is not None:
        assert found.date_created.utcoffset() == answer.date_created.utcoffset()
        assert getattr(found.date_created.tzinfo, "key", None) == getattr(answer.date_created.tzinfo, "key", None)


def test_a_zone_that_is_not_known_here_leaves_the_offset():
    answer = GroupDetail(date_created=datetime(2026, 3, 4, 5, 6, 7, tzinfo=ZoneInfo("Asia/Shanghai")))
    document = answer_to_json(QueryGroupDetail, answer)
    assert document["answer"]["date_created"] == "2026-03-04T05:06:07+08:00[Asia/Shanghai]"
    document["answer"]["date_created"] = "2026-03-04T05:06:07+08:00[Mars/Olympus]"
    assert answer_from_json(document).date_created == answer.date_created


def test_a_field_of_a_newer_answer_is_ignored():
    document = answer_to_json(InviteJoinGroup, Invited(invited=("a",)))
    document["answer"]["new"] = 1
    assert answer_from_json(document) == Invited(invited=("a",))


async def test_answers_of_the_platform_come_back_equal():
    emulator = Emulator(credentials=CREDENTIALS)
    async with AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=emulator) as client:
        created = await client.groups.create(name="群", type=GroupType.VIP)
        emulator.never_logged_in("1002")
        asked = InviteJoinGroup(group_id=created.group_id, members=["1001", "1002"])
        for each in (asked, QueryGroupDetail(group_id=created.group_id)):
            answer = await client.send(each)
            assert answer_from_json(through(answer_to_json(each, answer))) == answer


# ------------------------------------------------------------------------------ errors

ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        number=st.integers(1, 9),
        elapsed=st.floats(0, 100),
        status=st.none() | st.integers(100, 599),
        code=st.none() | texts(6),
        outcome=st.none() | st.sampled_from(Outcome),
        error=st.none() | st.sampled_from(["Throttled", "NotSent"]),
    ),
    max_size=3,
).map(tuple)
ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.RbimError)]
VALUES = {
    "field": texts(),
    "limit": st.none() | st.integers(0, 10**9),
    "length": st.none() | st.integers(0, 10**9),
    "reason": texts(),
    "status": st.integers(0, 599),
    "body": st.binary(max_size=200),
    "retry_after": st.none() | st.floats(0, 1e6),
    "code": texts(6),
    "platform_message": texts(),
}


@pytest.mark.parametrize("kind", ERRORS)
@EXAMPLES
@given(data=st.data())
def test_every_error_comes_back_with_all_that_it_carries(kind, data):
    parameters = inspect.signature(kind).parameters
    error = kind(
        data.draw(texts()),
        **{name: data.draw(VALUES[name]) for name in parameters if name in VALUES and name != next(iter(parameters))},
    )
    error.attempts, error.operation, error.client = data.draw(ATTEMPTS), data.draw(st.none() | texts()), data.draw(texts())
    error.outcome = data.draw(st.sampled_from(Outcome))
    if data.draw(st.booleans()):
        error.add_note("a note")
    found = error_from_json(through(error_to_json(error)))
    assert type(found) is kind
    assert found.__dict__ == error.__dict__
    assert str(found) == str(error)
    assert found.docs == error.docs


def test_a_class_of_ones_own_becomes_its_nearest_base():
    class Sulking(Throttled):
        pass

    found = error_from_json(error_to_json(Sulking("slow", retry_after=3.0)))
    assert (type(found), found.retry_after) == (Throttled, 3.0)


def test_a_long_body_is_cut_and_an_endless_pause_is_none():
    found = error_from_json(through(error_to_json(ProtocolError("no", body=b"x" * 10_000, retry_after=float("inf")))))
    assert (len(found.body), found.retry_after) == (4096, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rbim": 3}, "version 3 is unknown"),
        ({"error": "SystemExit"}, "unknown error 'SystemExit'"),
        ({"error": "Outcome"}, "unknown error 'Outcome'"),
        ({"outcome": "perhaps"}, "cannot be read as Throttled"),
        ({"attempts": [{"number": 1}]}, "cannot be read as Throttled"),
        ({"fields": {}}, "cannot be read as Throttled"),
    ],
)
def test_an_error_that_is_none_is_refused_with_the_cause(change, said):
    with pytest.raises(InvalidRequest, match=said):
        error_from_json({**error_to_json(Throttled("slow")), **change})


async def test_no_document_has_a_secret_even_if_the_platform_repeats_it():
    seen = []

    class Echo(Emulator):
        async def send(self, request, /, *, timeout):
            seen.extend([request.query["sig"], request.headers["Authorization"]])
            response = await super().send(request, timeout=timeout)
            body = {"statusCode": "999999", "statusMsg": f"{request.query} {dict(request.headers)}"}
            return attrs.evolve(response, body=json.dumps(body).encode())

    client = AsyncClient(base_url="http://e", credentials=CREDENTIALS, transport=Echo(credentials=CREDENTIALS))
    asked = QueryGroupDetail(group_id="g")
    async with client:
        with pytest.raises(ApiError) as refused:
            await client.send(asked)
    text = json.dumps([error_to_json(refused.value), operation_to_json(asked)])
    body = error_from_json(error_to_json(refused.value)).body.decode()
    assert "***" in body
    for secret in (TOKEN, *seen):
        assert secret.lower() not in text.lower()
        assert secret.lower() not in body.lower()
