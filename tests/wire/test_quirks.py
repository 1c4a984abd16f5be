"""Every oddity an answer may have, as the bytes that were seen or that the description allows; with orjson and without."""

import json
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from helpers.strategies import LEAST
from helpers.tables import each_row
from rbim import CHINA, ApiError, Dialect, MembersShape, Outcome, ProtocolError, RbimError, Response
from rbim._support import json as rbim_json
from rbim.operations.call_tasks import CallTaskCreated, CreateCallTask
from rbim.operations.fails import Fail
from rbim.operations.groups import (
    Created,
    CreateGroup,
    DeleteGroup,
    GroupDetail,
    GroupFound,
    GroupsFound,
    GroupType,
    Invited,
    InviteJoinGroup,
    Permission,
    QueryGroupDetail,
    SearchPublicGroups,
    Success,
    Target,
)
from rbim.wire.codec import Codec
from rbim.wire.converter import make_converter


@pytest.fixture(params=["orjson", "standard library"], scope="module")
def road(request):
    """Read JSON with orjson, then with the standard library."""
    if request.param == "orjson":
        pytest.importorskip("orjson")
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "orjson":
            patch.setattr(rbim_json, "orjson", None)
        yield


CODEC = Codec(app_id="app", base_url="https://host:8883", dialect=Dialect(), clock=FixedClock())

CREATE = CreateGroup(name="a", type=GroupType.VIP)
DELETE = DeleteGroup(group_id="g1")
SEARCH = SearchPublicGroups(name="a")
DETAIL = QueryGroupDetail(group_id="g1")
INVITE = InviteJoinGroup(group_id="g1", members=["1001"])
TASK = CreateCallTask(**LEAST)


def decode(op, body, status=200):
    return CODEC.decode(op, Response(status, {}, body))


def answer(op, fields):
    """Decode a success that consists of these fields, given as the inside of a JSON object."""
    return decode(op, b'{"statusCode":"000000"%s}' % (b"," + fields.encode() if fields else b""))


def test_the_answer_of_the_sample():
    """As the response sample of QueryGroupDetail writes it, a `type` included that its table does not list."""
    detail = decode(
        DETAIL,
        '{"statusCode":"000000","name":"研发","owner":"admin","declared":"公告","count":"3",'
        '"dateCreated":"2014-1-2 03:04:05","permission":"1","target":"1","type":"2","groupDomain":"x"}'.encode(),
    )
    assert detail == GroupDetail(
        name="研发",
        owner="admin",
        declared="公告",
        count=3,
        count_text="3",
        date_created=datetime(2014, 1, 2, 3, 4, 5, tzinfo=CHINA),
        date_created_text="2014-1-2 03:04:05",
        permission=Permission.VERIFIED,
        target=Target.GROUP,
        type=GroupType.PAID_500,
        group_domain="x",
    )
    assert detail.extra == {}


# ------------------------------------------------------------------------------------- counts


@pytest.mark.usefixtures("road")
@each_row(
    "written, count, text",
    [
        ('"3"', 3, "3"),
        ("3", 3, "3"),
        ('" 3 "', 3, " 3 "),
        ('"3\\u001f"', 3, "3\x1f"),
        ('"0"', 0, "0"),
        ('"003"', 3, "003"),
        ('"1,2"', None, "1,2"),
        ('"3.0"', None, "3.0"),
        ("3.5", None, "3.5"),
        ('"\\uff13"', None, "\N{FULLWIDTH DIGIT THREE}"),
        ('"many"', None, "many"),
        ('"99999999999999999999"', None, "99999999999999999999"),
        ("99999999999999999999", 99999999999999999999, "99999999999999999999"),
        ("true", None, "true"),
        ('""', None, ""),
        ("null", None, ""),
        ("[3]", None, "[3]"),
        ('{"a":3}', None, '{"a": 3}'),
    ],
)
def test_a_count_is_a_number_where_its_text_is_one_and_the_text_is_kept(written, count, text):
    detail = answer(DETAIL, f'"count":{written}')
    assert (detail.count, detail.count_text) == (count, text)


# -------------------------------------------------------------------------------------- dates


@each_row(
    "written, moment",
    [
        ('"2014-10-1 10:5:3"', datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA)),
        ('"2014-10-01 10:05:03"', datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA)),
        ('"2014-10-01T10:05:03"', datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA)),
        ('"2014-10-1 10:5:3.0"', datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA)),
        ('" 2014-10-1 10:5:3 "', datetime(2014, 10, 1, 10, 5, 3, tzinfo=CHINA)),
        ('"20130201155306"', datetime(2013, 2, 1, 15, 53, 6, tzinfo=CHINA)),
        ("20130201155306", datetime(2013, 2, 1, 15, 53, 6, tzinfo=CHINA)),
        ('"1412128803000"', datetime(2014, 10, 1, 2, 0, 3, tzinfo=UTC)),
        ("1412128803000", datetime(2014, 10, 1, 2, 0, 3, tzinfo=UTC)),
        ('"999999999999"', datetime(2001, 9, 9, 1, 46, 39, 999_000, tzinfo=UTC)),
    ],
)
def test_a_date_of_any_known_form_is_a_moment_in_the_dialects_zone(written, moment):
    detail = answer(DETAIL, f'"dateCreated":{written}')
    assert detail.date_created == moment
    assert detail.date_created.utcoffset() == timedelta(hours=8)
    assert detail.date_created_text == written.strip('"')


@each_row(
    "text",
    [
        "yesterday",
        "2014-13-1 10:5:3",
        "2014-2-30 10:5:3",
        "2014-10-1 24:00:00",
        "0000-1-1 0:0:0",
        "20131301155306",
        "5",
        "-1",
    ],
)
def test_a_date_that_cannot_be_read_is_none_beside_its_text(text):
    detail = answer(DETAIL, f'"dateCreated":"{text}"')
    assert (detail.date_created, detail.date_created_text) == (None, text)


# ----------------------------------------------------------------------- texts, codes, unknowns


@pytest.mark.usefixtures("road")
@each_row(
    "written, text",
    [("12345", "12345"), ("1.5", "1.5"), ("true", "true"), ("null", ""), ('""', ""), ('{"code":"不"}', '{"code": "不"}')],
)
def test_whatever_stands_where_a_text_is_declared_becomes_text(written, text):
    assert answer(DETAIL, f'"name":{written}').name == text


@each_row("written", ['"groupDomain":""', '"groupDomain":null', ""])
def test_an_extension_field_that_is_not_there_is_none(written):
    assert answer(DETAIL, written).group_domain is None


def test_a_group_id_may_be_a_number():
    assert answer(CREATE, '"groupId":80000049837291') == Created(group_id="80000049837291")


@each_row("written, kind", [('"4"', GroupType.VIP), ("4", GroupType.VIP), ('"0"', GroupType.TEMPORARY)])
def test_a_code_of_an_enum_is_its_member_in_text_or_in_number(written, kind):
    assert answer(DETAIL, f'"type":{written}').type is kind


@each_row("written, text", [('"7"', "7"), ("7", "7"), ('"vip"', "vip"), ("true", "true"), ('""', None), ("null", None)])
def test_a_code_outside_its_enum_stays_the_text_it_is(written, text):
    detail = answer(DETAIL, f'"type":{written},"permission":{written},"target":{written}')
    assert [detail.type, detail.permission, detail.target] == [text, text, text]
    assert not isinstance(detail.type, GroupType)


def test_unknown_fields_are_kept_aside_as_they_are():
    detail = answer(DETAIL, '"name":"a","members":[{"userName":"1001"}],"appId":null,"extra":5')
    assert detail.name == "a"
    assert detail.extra == {"members": [{"userName": "1001"}], "appId": None, "extra": 5}
    assert answer(DELETE, '"version":2').extra == {"version": 2}


def test_the_message_of_a_success_is_kept():
    assert answer(DELETE, '"statusMsg":"ok"').extra == {"statusMsg": "ok"}


# ------------------------------------------------------------------------------ rows of a search

ONE = '{"groupId":"g1","name":"a","type":"1","count":"3","permission":"0"}'
TWO = '{"groupId":"g2","name":"b"}'
G1 = GroupFound(
    group_id="g1", name="a", type=GroupType.PAID_300, count=3, count_text="3", permission=Permission.OPEN, extra={}
)
G2 = GroupFound(group_id="g2", name="b")


@each_row(
    "written, found",
    [
        (f'"groups":{{"group":{ONE}}}', [G1]),
        (f'"groups":{{"group":[{ONE}]}}', [G1]),
        (f'"groups":{{"group":[{ONE},{TWO}]}}', [G1, G2]),
        (f'"groups":{{"groups":[{ONE},{TWO}]}}', [G1, G2]),
        (f'"groups":[{ONE},{TWO}]', [G1, G2]),
        (f'"groups":[{{"group":{ONE}}},{{"group":{TWO}}}]', [G1, G2]),
        (f'"groups":{ONE}', [G1]),
        (f'"groups":{{"count":"2","group":[{ONE},{TWO}]}}', [G1, G2]),
        (ONE.strip("{}"), [G1]),
        (f'{TWO.strip("{}")},"statusMsg":"ok"', [G2]),
        ("", []),
        ('"groups":null', []),
        ('"groups":""', []),
        ('"groups":{}', []),
        ('"groups":[]', []),
        ('"groups":0', []),
        ('"groups":false', []),
        ('"groups":{"group":{}}', []),
        ('"groups":{"group":[]}', []),
        ('"groups":{"group":null}', []),
        ('"groups":{"group":""}', []),
        ('"groupId":"","name":"","type":"","count":"0","permission":""', []),
        ('"count":"0"', []),
    ],
)
def test_a_search_is_answered_in_any_of_these_shapes(written, found):
    answered = answer(SEARCH, written)
    assert list(answered) == found
    assert len(answered) == len(found)
    assert [group.extra for group in answered] == [{} for _ in found]


@each_row(
    "written, groups, beside",
    [
        ('"groups":{"group":{"id":"g1"}}', [("g1", {})], {}),
        ('"groups":{"group":{"Id":"g1","NAME":"a"}}', [("g1", {})], {}),
        ('"groups":[{"groupId":"g1","group":[1],"groups":{"a":1}}]', [("g1", {"group": [1], "groups": {"a": 1}})], {}),
        ('"groups":{"group":{"groupId":"g1","id":"x"}}', [("g1", {"id": "x"})], {}),
        ('"groups":[{"title":"a"},{"title":"b"}]', [("", {"title": "a"}), ("", {"title": "b"})], {}),
        ('"groups":{"title":{"zh":"a"}}', [("", {"title": {"zh": "a"}})], {}),
        ('"groups":{"count":"2","group":[{"groupId":"g1"}]}', [("g1", {})], {"groups": {"count": "2"}}),
        (
            '"groups":{"page":1,"list":[{"groupId":"g1"},{"groupId":"g2"}]}',
            [("g1", {}), ("g2", {})],
            {"groups": {"page": 1}},
        ),
        (
            '"groups":[{"n":1,"group":{"groupId":"g1"}},{"n":2,"group":{"groupId":"g2"}}]',
            [("g1", {}), ("g2", {})],
            {"groups": [{"n": 1}, {"n": 2}]},
        ),
        ('"group":{"groupId":"g1"}', [("g1", {})], {}),
        ('"Groups":[{"groupId":"g1"}]', [("g1", {})], {}),
        ('"groups":[{"groupId":"g1"}],"group":{"groupId":"g2"}', [("g1", {}), ("g2", {})], {}),
        ('"groups":null,"groupId":"g1","total":1', [("g1", {})], {"total": 1}),
        ('"groups":{"list":[],"more":{}}', [], {"groups": {"list": [], "more": {}}}),
        ('"groups":false', [], {"groups": False}),
        ('"groups":["g1",7,true]', [("g1", {}), ("7", {}), ("true", {})], {}),
    ],
)
def test_nothing_that_stands_among_groups_is_lost(written, groups, beside):
    answered = answer(SEARCH, written)
    assert [(group.group_id, group.extra) for group in answered] == groups
    assert answered.extra == beside


# --------------------------------------------------------------------------- rows of an invitation

WHO = Fail(member="1001", reason="不存在")
ROW = '{"member":"1001","reason":"不存在"}'


@each_row(
    "written, fails",
    [
        (f'"fails":[{ROW}]', [WHO]),
        (f'"fails":{ROW}', [WHO]),
        (f'"fails":{{"fail":{ROW}}}', [WHO]),
        (f'"fails":{{"fail":[{ROW},{ROW}]}}', [WHO, WHO]),
        ('"fails":["1001","1002"]', [Fail(member="1001"), Fail(member="1002")]),
        ('"fails":"1001"', [Fail(member="1001")]),
        ('"fails":[1001]', [Fail(member="1001")]),
        ('"fails":{"fail":"1001"}', [Fail(member="1001")]),
        ('"fails":{"fail":["1001","1002"]}', [Fail(member="1001"), Fail(member="1002")]),
        ('"fails":[{"member":"1001"}]', [Fail(member="1001")]),
        ('"fails":[{"reason":"x"}]', [Fail(reason="x")]),
        ('"fails":[{"member":"1001","reason":null}]', [Fail(member="1001")]),
        ('"fails":[{"member":1001,"reason":7}]', [Fail(member="1001", reason="7")]),
        ('"fails":[{"member":"1001","reason":{"code":7}}]', [Fail(member="1001", reason='{"code": 7}')]),
        ('"fails":[]', []),
        ('"fails":{}', []),
        ('"fails":null', []),
        ('"fails":""', []),
        ('"fails":{"fail":[]}', []),
        ("", []),
    ],
)
def test_failed_invitees_are_listed_in_any_of_these_shapes(written, fails):
    assert [attrs.evolve(each, account=None) for each in answer(INVITE, written).fails] == fails


# ---------------------------------------------------------------------------------------- bytes


@pytest.mark.usefixtures("road")
@each_row(
    "body, reason",
    [
        (b"", "an empty answer"),
        (b"   ", "an empty answer"),
        (b'{"statusCode":"000000"', "not JSON"),
        (b'{"statusCode":"000000"}{"statusCode":"000000"}', "not JSON"),
        (b'{"statusCode":"000000","count":NaN}', "NaN is not JSON"),
        (b'{"statusCode":"000000","count":-Infinity}', "-Infinity is not JSON"),
        (b'{"statusCode":"000000","count":1e999}', "too large for a float"),
        (b'{"statusCode":"000000","count":' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"statusCode":"000000","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than 64 levels deep"),
        (b'["000000"]', "an object is needed, not list"),
        (b'"000000"', "an object is needed, not str"),
        (b"null", "an object is needed, not NoneType"),
        (b"{}", "required field missing @ $.statusCode"),
        (b'{"statusCode":null}', "required field missing @ $.statusCode"),
        (b'{"statusCode":""}', "required field missing @ $.statusCode"),
        (b'{"statusCode":{}}', "required field missing @ $.statusCode"),
        (b'{"statusCode":false}', "required field missing @ $.statusCode"),
        (b'{"code":"000000"}', "required field missing @ $.statusCode"),
    ],
)
def test_what_is_no_readable_answer_is_a_protocol_error_of_unknown_outcome(body, reason):
    with pytest.raises(ProtocolError) as caught:
        decode(DETAIL, body)
    error = caught.value
    assert reason in error.reason
    assert (error.status, error.body, error.outcome) == (200, body, Outcome.UNKNOWN)


@each_row("written, code", [("0", None), ("112310", "112310"), ('"112310"', "112310")])
def test_a_code_sent_as_a_number_has_its_width_back(written, code):
    body = b'{"statusCode":%s}' % written.encode()
    if code is None:
        assert decode(DELETE, body) == Success()
    else:
        with pytest.raises(ApiError) as caught:
            decode(DELETE, body)
        assert caught.value.code == code


@each_row(
    "body",
    [
        b'{"statusCode":"112310","statusMsg":"\xe7\xbe\xa4\xe4\xb8\x8d\xe5\xad\x98\xe5\x9c\xa8"}',
        b'{"statusMsg":"\\u7fa4\\u4e0d\\u5b58\\u5728","statusCode":"112310","data":null}',
    ],
)
def test_a_business_error_is_read_in_any_order(body):
    with pytest.raises(ApiError) as caught:
        decode(DELETE, body)
    error = caught.value
    assert (error.code, error.platform_message, error.status, error.outcome) == ("112310", "群不存在", 200, Outcome.REFUSED)


# ---------------------------------------------------------------------------- the required fields


@each_row("written", ["", '"groupId":null', '"groupId":""', '"groupId":{}', '"groupId":[]', '"groupId":true'])
def test_a_new_group_without_its_id_cannot_be_read(written):
    with pytest.raises(ProtocolError, match=r"required field missing @ \$\.groupId") as caught:
        answer(CREATE, written)
    assert caught.value.outcome is Outcome.UNKNOWN  # the group is there: nobody knows its id


@each_row(
    "body, extra",
    [
        (b'{"code":"000000","msg":"success","data":{"taskId":"t1"}}', {"msg": "success"}),
        (b'{"code":"000000","msg":"succeed","data":{"taskId":"t1","more":1}}', {"msg": "succeed", "more": 1}),
        (b'{"code":0,"more":[2],"data":{"taskId":"t1"}}', {"more": [2]}),
        (b'{"code":"000000","taskId":"t1"}', {}),
        (b'{"code":"000000","data":null,"taskId":"t1"}', {"data": None}),
    ],
)
def test_a_new_task_is_read_from_data_or_beside_the_code(body, extra):
    made = decode(TASK, body)
    assert (made.task_id, made.extra) == ("t1", extra)


@each_row(
    "body, task_id, extra",
    [
        (b'{"code":"000000","msg":"a","data":{"taskId":"t1","msg":"b"}}', "t1", {"msg": "b", "$": {"msg": "a"}}),
        (b'{"code":"000000","taskId":"t2","data":{"taskId":"t1"}}', "t1", {"$": {"taskId": "t2"}}),
        (b'{"code":"000000","msg":"a","data":{"taskId":"t1","msg":"a"}}', "t1", {"msg": "a"}),
        (b'{"code":"000000","taskId":"t1","data":[{"x":1}]}', "t1", {"data": [{"x": 1}]}),
    ],
)
def test_a_field_both_in_the_data_and_beside_it_is_kept_twice(body, task_id, extra):
    made = decode(TASK, body)
    assert (made.task_id, made.extra) == (task_id, extra)


@each_row(
    "body",
    [
        b'{"code":"000000","msg":"success"}',
        b'{"code":"000000","data":null}',
        b'{"code":"000000","data":"t1"}',
        b'{"code":"000000","data":[]}',
        b'{"code":"000000","data":{}}',
        b'{"code":"000000","data":{"taskId":""}}',
    ],
)
def test_a_new_task_without_its_id_cannot_be_read(body):
    with pytest.raises(ProtocolError, match=r"required field missing @ \$\.data\.taskId"):
        decode(TASK, body)


def test_a_task_is_refused_by_code_and_msg():
    with pytest.raises(ApiError) as caught:
        decode(TASK, '{"code":"112310","msg":"机器人不存在","data":null}'.encode())
    assert (caught.value.code, caught.value.platform_message) == ("112310", "机器人不存在")


# ------------------------------------------------------------------------------------ all at once

KEYS = st.sampled_from(
    [
        "statusMsg",
        "name",
        "owner",
        "declared",
        "count",
        "dateCreated",
        "permission",
        "target",
        "type",
        "groupDomain",
        "groups",
        "group",
        "groupId",
        "fails",
        "fail",
        "member",
        "reason",
        "extra",
        "data",
        "taskId",
    ]
) | st.text(max_size=5)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**17, 10**21)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=20)  # lone surrogates included
    | st.sampled_from(["0", "1", "2", "1,2", "2014-10-1 10:5:3", "2014-13-1 10:5:3", "1412128803000"]),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(KEYS, values, max_size=4),
    max_leaves=15,
)
CODED = st.fixed_dictionaries(
    {"statusCode": st.sampled_from(["000000", "112310", "160001", 0, 112310, "", "\n", None])},
    optional={"statusMsg": JSON, "groupId": JSON, "groups": JSON, "fails": JSON},
)
LONG = settings(max_examples=60, deadline=None)


def written(value):
    return json.dumps(value).encode()


@pytest.mark.usefixtures("road")
@LONG
@given(
    op=st.sampled_from([DETAIL, SEARCH, INVITE, DELETE]),
    fields=st.dictionaries(KEYS, JSON, max_size=8),
    escaped=st.booleans(),
)
def test_no_field_whatever_costs_an_answer(op, fields, escaped):
    text = json.dumps({**fields, "statusCode": "000000"}, ensure_ascii=escaped)
    body = text.encode("utf-8", "replace")
    assert type(decode(op, body)) is op.spec.answer


@pytest.mark.usefixtures("road")
@LONG
@given(
    op=st.sampled_from([DETAIL, SEARCH, INVITE, DELETE, CREATE, TASK]),
    status=st.sampled_from([200, 200, 200, 201, 302, 400, 404, 429, 500, 503]),
    body=st.binary(max_size=60) | JSON.map(written) | CODED.map(written),
    headers=st.dictionaries(st.just("retry-after"), st.text(max_size=40), max_size=1),
)
def test_whatever_comes_is_an_answer_or_an_error_of_rbims_own(op, status, body, headers):
    try:
        CODEC.decode(op, Response(status, headers, body))
    except RbimError as error:
        failure = error
    else:
        assert status == 200
        return
    assert str(failure).isprintable()
    assert failure.outcome in {Outcome.REFUSED, Outcome.UNKNOWN}


# ------------------------------------------------------- what is written, as the emulator writes it

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
COUNTS = st.none() | st.integers(0, 2000)
MOMENTS = st.datetimes(min_value=datetime(1000, 1, 2), max_value=datetime(9999, 1, 1), timezones=st.just(CHINA)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)
UNKNOWN = st.dictionaries(st.sampled_from(["x", "y"]), WORDS | st.integers() | st.none() | st.lists(WORDS), max_size=2)
ROWS = st.builds(
    GroupFound,
    group_id=WORDS,
    name=WORDS,
    type=st.none() | st.sampled_from(GroupType),
    count=COUNTS,
    permission=st.none() | st.sampled_from(Permission),
    extra=UNKNOWN,
)
ANSWERS = st.one_of(
    st.builds(Success, extra=UNKNOWN),
    st.builds(Created, group_id=WORDS, extra=UNKNOWN),
    st.builds(CallTaskCreated, task_id=WORDS, extra=UNKNOWN),
    st.builds(
        Invited,
        fails=st.lists(st.builds(Fail, member=WORDS, reason=st.just("") | WORDS, extra=UNKNOWN), max_size=3).map(tuple),
        extra=UNKNOWN,
    ),
    st.builds(GroupsFound, groups=st.lists(ROWS, max_size=3).map(tuple), extra=UNKNOWN),
    st.builds(
        GroupDetail,
        name=WORDS,
        owner=WORDS,
        declared=st.just("") | WORDS,
        count=COUNTS,
        date_created=st.none() | MOMENTS,
        permission=st.none() | st.sampled_from(Permission) | st.just("7"),
        target=st.none() | st.sampled_from(Target),
        type=st.none() | st.sampled_from(GroupType),
        group_domain=st.none() | WORDS,
        extra=UNKNOWN,
    ),
)


def without_raw_texts(value):
    """Return an answer as nested dicts, without the raw texts that only reading fills in."""
    if isinstance(value, tuple):
        return [without_raw_texts(each) for each in value]
    if not hasattr(value, "__attrs_attrs__"):
        return value
    names = [each.name for each in value.__attrs_attrs__ if not each.name.endswith("_text")]
    return {name: without_raw_texts(getattr(value, name)) for name in names}


@each_row("shape", MembersShape)
@LONG
@given(before=ANSWERS)
def test_what_the_converter_writes_it_reads_back_equal(shape, before):
    converter = make_converter(CHINA, shape)
    document = json.loads(json.dumps(converter.unstructure(before)))
    after = converter.structure(document, type(before))
    assert without_raw_texts(after) == without_raw_texts(before)
    assert converter.structure(converter.unstructure(after), type(after)) == after


def test_the_emulators_side_writes_what_the_samples_show():
    converter = make_converter(CHINA, MembersShape.PLAIN)
    moment = datetime(2014, 10, 1, 2, 5, 3, tzinfo=UTC)
    assert converter.unstructure(GroupDetail(name="a", count=3, date_created=moment, type=GroupType.VIP)) == {
        "name": "a",
        "owner": "",
        "declared": "",
        "count": "3",
        "dateCreated": "2014-10-1 10:5:3",
        "type": "4",
    }
    assert converter.unstructure(GroupsFound()) == {"groups": {}}
    one, row = GroupFound(group_id="g1"), {"groupId": "g1", "name": ""}
    assert converter.unstructure(GroupsFound(groups=(one,))) == {"groups": {"group": row}}
    assert converter.unstructure(GroupsFound(groups=(one, one)))["groups"] == {"group": [row, row]}
    assert converter.unstructure(Invited()) == {}
    assert converter.unstructure(Invited(fails=(Fail(member="1", reason="x"),))) == {
        "fails": [{"member": "1", "reason": "x"}]
    }
