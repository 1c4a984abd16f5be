"""Outbound-call tasks: the table of the interface description, no-call policies, and the ``Rand`` header."""

import json
import string
from datetime import UTC, date, datetime, time, timedelta, timezone

import attrs
import pytest
from hypothesis import given, settings

from helpers.fixed_clock import FixedClock
from helpers.strategies import LEAST, POLICIES, operations
from helpers.tables import each_row
from rbim import (
    CHINA,
    ApiError,
    CallPolicy,
    CreateCallTask,
    Dialect,
    InvalidRequest,
    MembersShape,
    NoCallPolicy,
    ProtocolError,
    Response,
    Weekday,
)
from rbim.operations.call_tasks import Dates, Hours, PolicyType, default_no_call_policies
from rbim.wire.codec import Codec
from rbim.wire.converter import make_converter


def codec(clock=None, digits=None, call_base_url=None, **choices):
    return Codec(
        app_id="app",
        base_url="https://groups:8883",
        call_base_url=call_base_url,
        dialect=Dialect(**choices),
        clock=clock or FixedClock(),
        digits=digits,
    )


def body(op, **options):
    return json.loads(codec(**options).encode(op).body)


def task(**fields):
    return CreateCallTask(**(LEAST | fields))


# ----------------------------------------------------------------------------------- the body


def test_the_fields_of_the_table_and_their_optionality():
    fields = {a.name: a.default for a in attrs.fields(CreateCallTask)}
    required = {name for name, default in fields.items() if default is attrs.NOTHING}
    assert required == set(LEAST)
    assert fields.keys() - required == {"task_desc", "isrecord", "disnumber", "call_policy", "rand"}
    for name in required:
        with pytest.raises(TypeError, match=name):
            CreateCallTask(**{key: value for key, value in LEAST.items() if key != name})


@each_row("name, limit", [("task_name", 32), ("task_desc", 64)])
@each_row("character", ["a", "呼", "🎉"])
def test_limits_in_characters(name, limit, character):
    assert body(task(**{name: character * limit}))[name] == character * limit
    with pytest.raises(InvalidRequest) as caught:
        task(**{name: character * (limit + 1)})
    assert (caught.value.field, caught.value.limit, caught.value.length) == (name, limit, limit + 1)


@each_row(
    "name, wrong",
    [
        ("bot_id", "7"),
        ("bot_id", True),
        ("task_name", ""),
        ("task_desc", 5),
        ("start_date", "2026-01-02"),
        ("start_date", datetime(2026, 1, 2, tzinfo=UTC)),
        ("min_concurrent", True),
        ("isrecord", 1),
        ("disnumber", 2112345678),
        ("caller", ""),
        ("caller", 4001234567),
        ("rand", 42),
        ("rand", ""),
        ("rand", "12a"),
        ("rand", "\N{FULLWIDTH DIGIT ONE}"),
        ("rand", "1\r\nX: y"),
        ("call_policy", NoCallPolicy.hours("x", time(1), time(2))),
        ("call_policy", CallPolicy([NoCallPolicy.hours("x", time(1), time(2))])),
        ("call_policy", [NoCallPolicy.hours("x", time(1), time(2)), CallPolicy([])]),
        ("call_policy", ["x"]),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name, wrong):
    with pytest.raises(InvalidRequest, match=f"^{name}: ") as caught:
        task(**{name: wrong})
    assert caught.value.field == name


@each_row("least", [0, -1])
def test_min_concurrent_is_at_least_one(least):
    with pytest.raises(InvalidRequest, match="min_concurrent: at least 1") as caught:
        task(min_concurrent=least)
    assert (caught.value.field, caught.value.limit) == ("min_concurrent", 1)


# ----------------------------------------------------------------- what needs clock and dialect


def midnight(zone_hours):
    return datetime(2026, 3, 10, tzinfo=timezone(timedelta(hours=zone_hours)))


SECOND = timedelta(seconds=1)


@each_row(
    "moment, zone, today",
    [
        (midnight(8) - SECOND, CHINA, date(2026, 3, 9)),
        (midnight(8), CHINA, date(2026, 3, 10)),  # 16:00 of the 9th in UTC
        (midnight(8), UTC, date(2026, 3, 9)),
        (midnight(0) - SECOND, UTC, date(2026, 3, 9)),
        (midnight(0) - SECOND, CHINA, date(2026, 3, 10)),
        (midnight(0), UTC, date(2026, 3, 10)),
    ],
)
def test_a_task_starts_today_in_the_dialects_zone_or_later(moment, zone, today):
    options = {"clock": FixedClock(moment), "zone": zone}
    end = today + timedelta(days=30)
    assert body(task(start_date=today, end_date=end), **options)["start_date"] == today.isoformat()
    with pytest.raises(InvalidRequest, match=r"start_date: .* is before today") as caught:
        body(task(start_date=today - timedelta(days=1), end_date=end), **options)
    assert caught.value.field == "start_date"


def test_a_task_may_end_on_its_first_day_and_not_before():
    assert body(task(end_date=LEAST["start_date"]))["end_date"] == "2026-01-02"
    with pytest.raises(InvalidRequest, match=r"end_date: .* is before start_date") as caught:
        body(task(start_date=date(2026, 1, 4), end_date=date(2026, 1, 3)))
    assert caught.value.field == "end_date"


def test_the_applications_concurrency_bounds_a_task_where_the_dialect_knows_it():
    assert body(task(max_concurrent=100_000))
    assert body(task(max_concurrent=10), application_concurrency=10)
    with pytest.raises(InvalidRequest, match="application's concurrency, 9") as caught:
        body(task(max_concurrent=10), application_concurrency=9)
    assert (caught.value.field, caught.value.limit) == ("max_concurrent", 9)


def test_a_task_name_is_written_as_text_and_read_from_a_number_as_well():
    document = body(task(task_name="5"))
    assert document["task_name"] == "5"
    converter = make_converter(CHINA, MembersShape.PLAIN)
    assert converter.structure(document | {"task_name": 5}, CreateCallTask) == task(task_name="5")


# --------------------------------------------------------------------- where it goes, and Rand


def test_the_path_of_a_task_has_no_version():
    assert codec(api_version="2016-08-15").encode(task()).path == "/api/application/app/aicall/task/save"


@each_row(
    "status, answer",
    [
        (200, b'{"code":"000001","msg":"success","data":{"taskId":"1"}}'),
        (200, b'{"statusCode":"000000","data":{"taskId":"1"}}'),
        (201, b'{"code":"000000","msg":"success","data":{"taskId":"1"}}'),
        (500, b'{"code":"000000","msg":"success","data":{"taskId":"1"}}'),
    ],
)
def test_a_task_is_made_by_http_200_with_the_code_of_success_alone(status, answer):
    made = b'{"data":{"taskId":"1"},"code":"000000"}'
    assert codec().decode(task(), Response(200, {}, made)).task_id == "1"
    with pytest.raises((ApiError, ProtocolError)):
        codec().decode(task(), Response(status, {}, answer))


def test_rand_is_the_callers_or_fresh_for_each_request_and_never_in_the_body():
    supply = iter(["111", "222"])
    made = codec(digits=lambda: next(supply))
    assert [made.encode(task()).headers["Rand"] for _ in range(2)] == ["111", "222"]
    assert made.encode(task(rand="007")).headers["Rand"] == "007"
    assert "rand" not in json.loads(made.encode(task(rand="007")).body)


def test_rand_is_random_ascii_digits_unless_told():
    made = codec()
    drawn = {made.encode(task()).headers["Rand"] for _ in range(20)}
    assert len(drawn) > 1
    assert all(digits and set(digits) <= set(string.digits) for digits in drawn)


# ---------------------------------------------------------------------------- no-call policies


def entry(policy):
    return json.loads(policy.entry)


def test_weekdays_are_written_in_chinese_from_monday_to_sunday():
    everyday = NoCallPolicy.weekdays("x", reversed(Weekday))
    assert entry(everyday)["policy_date"] == "周一,周二,周三,周四,周五,周六,周日"
    assert [day.wire for day in (Weekday.WEDNESDAY, Weekday.SUNDAY)] == ["周三", "周日"]
    assert entry(NoCallPolicy.weekdays("x", {Weekday.FRIDAY, Weekday.MONDAY}))["policy_date"] == "周一,周五"


def test_hours_are_padded_and_dates_too():
    assert entry(NoCallPolicy.hours("x", time(7, 5), time(7, 5, 9)))["policy_date"] == "07:05:00,07:05:09"
    assert entry(NoCallPolicy.dates("x", date(2026, 2, 3), date(2026, 2, 3)))["policy_date"] == "2026-02-03,2026-02-03"


def test_the_types_of_the_table():
    assert [(each.name, each.value) for each in PolicyType] == [("DAY", 0), ("WEEK", 1), ("DATES", 2)]


@each_row(
    "field, make",
    [
        ("start", lambda: NoCallPolicy.hours("x", "09:00:00", time(10))),
        ("start", lambda: NoCallPolicy.hours("x", time(9, 0, 0, 1), time(10))),
        ("end", lambda: NoCallPolicy.hours("x", time(9), time(10, tzinfo=UTC))),
        ("start", lambda: NoCallPolicy.dates("x", datetime(2026, 2, 2, tzinfo=UTC), date(2026, 2, 3))),
        ("days", lambda: NoCallPolicy.weekdays("x", [])),
        ("days", lambda: NoCallPolicy.weekdays("x", Weekday.SUNDAY)),
        ("days", lambda: NoCallPolicy.weekdays("x", "周一")),
        ("name", lambda: NoCallPolicy.hours("", time(9), time(10))),
        ("name", lambda: NoCallPolicy.hours("\ud800", time(9), time(10))),
        ("period", lambda: NoCallPolicy("x", "00:00:00,09:00:00")),
        ("policies", lambda: CallPolicy(NoCallPolicy.hours("x", time(9), time(10)))),
    ],
)
def test_a_period_that_makes_no_sense_is_refused(field, make):
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert caught.value.field == field


NIGHT = NoCallPolicy.hours("x", time(21), time(9))
BACKWARDS = NoCallPolicy.dates("x", date(2026, 2, 2), date(2026, 2, 1))


@each_row("policy, words", [(NIGHT, "for a night use two policies"), (BACKWARDS, "before its start")])
def test_a_period_whose_end_is_before_its_start_is_refused_by_default(policy, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        body(task(call_policy=[policy]))
    assert caught.value.field == "call_policy"
    assert ("night" in caught.value.message) is (policy is NIGHT)
    accepting = codec(reversed_periods_refused=False)
    [sent] = json.loads(accepting.encode(task(call_policy=[policy])).body)["call_policy"][0]["policy"]
    assert json.loads(sent)["policy_date"] == {NIGHT: "21:00:00,09:00:00", BACKWARDS: "2026-02-02,2026-02-01"}[policy]


def test_bounds_that_contradict_each_other_are_refused_by_default():
    op = task(max_concurrent=1, min_concurrent=2)
    with pytest.raises(InvalidRequest, match="max_concurrent: 1 is below min_concurrent, 2"):
        body(op)
    sent = json.loads(codec(max_below_min_refused=False).encode(op).body)
    assert (sent["max_concurrent"], sent["min_concurrent"]) == (1, 2)


AROUND = len('{"policy_type":0,"policy_name":"","policy_date":"09:00:00,10:00:00"}')


@each_row("character", ["a", "早", "🎉"])
def test_an_entry_has_at_most_255_characters(character):
    longest = character * (255 - AROUND)
    policy = NoCallPolicy.hours(longest, time(9), time(10))
    [written] = body(task(call_policy=[policy]))["call_policy"][0]["policy"]
    assert len(written) == 255
    assert json.loads(written)["policy_name"] == longest
    with pytest.raises(InvalidRequest, match="at most 255 characters, not 256") as caught:
        NoCallPolicy.hours(longest + character, time(9), time(10))
    assert (caught.value.field, caught.value.limit, caught.value.length) == ("name", 255, 256)


def test_policy_names_are_unique_within_a_task():
    morning, night = default_no_call_policies()
    again = NoCallPolicy.weekdays("morning", [Weekday.MONDAY])
    with pytest.raises(InvalidRequest, match="'morning' appears twice") as caught:
        task(call_policy=[morning, night, again])
    assert caught.value.field == "call_policy"


def test_the_default_policies_are_a_morning_and_a_night():
    assert [(entry(each)["policy_type"], entry(each)["policy_date"]) for each in default_no_call_policies()] == [
        (0, "00:00:00,09:00:00"),
        (0, "21:00:00,23:59:59"),
    ]
    assert body(task(call_policy=default_no_call_policies()))["call_policy"][0]["type"] == 0


def test_no_policies_and_no_word_on_policies_differ():
    assert "call_policy" not in body(task())
    assert "call_policy" not in body(task(call_policy=None))
    assert body(task(call_policy=[]))["call_policy"] == []
    assert body(task(call_policy=[CallPolicy([])]))["call_policy"] == [{"type": 0, "policy": []}]
    assert task() != task(call_policy=[])


def test_several_call_policy_objects_are_sent_as_several():
    morning, night = default_no_call_policies()
    op = task(call_policy=[CallPolicy([morning]), CallPolicy([night])])
    assert [entry(each)["policy_name"] for each in op.no_call_policies] == ["morning", "night"]
    assert op.no_call_policies == (morning, night)
    assert task().no_call_policies == ()
    with pytest.raises(InvalidRequest, match="'morning' appears twice"):
        task(call_policy=[CallPolicy([morning]), CallPolicy([morning])])


@each_row(
    "wrong, words",
    [
        ({"type": 1, "policy": []}, "type 0, no-call, is the only documented type, not 1"),
        ({"policy": []}, "an object with type and policy"),
        ({"type": 0}, "an object with type and policy"),
        ({"type": False, "policy": []}, "an object with type and policy"),
        (["type", "policy"], "an object with type and policy"),
        ({"type": 0, "policy": ["garbage"]}, "an entry must be a text"),
    ],
)
def test_a_call_policy_object_that_is_not_documented_is_refused(wrong, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        CallPolicy.from_wire(wrong)
    assert caught.value.field == "call_policy"


# ------------------------------------------------------------------------- there and back again


@settings(deadline=None)
@given(policy=POLICIES)
def test_an_entry_reads_back_as_the_same_policy(policy):
    assert NoCallPolicy.from_entry(policy.entry.decode()) == policy


@settings(deadline=None)
@given(op=operations(CreateCallTask))
def test_a_task_reads_back_as_the_same_task(op):
    read = make_converter(CHINA, MembersShape.PLAIN).structure(body(op), CreateCallTask)
    assert read == attrs.evolve(op, rand=None)  # which is not in the body


@each_row(
    "junk",
    [
        "",
        "no json",
        "[]",
        "5",
        "{}",
        '{"policy_type": 3, "policy_name": "x", "policy_date": "a,b"}',
        '{"policy_type": null, "policy_name": "x", "policy_date": "09:00:00,10:00:00"}',
        '{"policy_type": 1e999, "policy_name": "x", "policy_date": "09:00:00,10:00:00"}',
        '{"policy_type": 0, "policy_name": "x", "policy_date": "09:00:00"}',
        '{"policy_type": 0, "policy_name": "x", "policy_date": "09:00:00,10:00:00,11:00:00"}',
        '{"policy_type": 0, "policy_name": "x", "policy_date": "09:00:00+08:00,10:00:00+08:00"}',
        '{"policy_type": 0, "policy_name": "x", "policy_date": 5}',
        '{"policy_type": 0, "policy_date": "09:00:00,10:00:00"}',
        '{"policy_type": 1, "policy_name": "x", "policy_date": "周八"}',
        '{"policy_type": 2, "policy_name": "x", "policy_date": "2026-13-01,2026-13-02"}',
        "[" * 100_000,
        "\ud800",
        {"policy_type": 0},
        None,
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(junk):
    with pytest.raises(InvalidRequest):
        NoCallPolicy.from_entry(junk)


def written(kind, when):
    return json.dumps({"policy_type": kind, "policy_name": "a", "policy_date": when}, ensure_ascii=False)


def test_entries_are_read_as_the_platform_writes_them_and_no_other_way():
    assert NoCallPolicy.from_entry(written(0, "00:00:00,09:00:00")).period == Hours(time(0), time(9))
    assert NoCallPolicy.from_entry(written(2, "2026-01-05,2026-01-06")).period == Dates(date(2026, 1, 5), date(2026, 1, 6))
    others = [(0, "00:00,09:00"), (0, "000000,090000"), (2, "20260105,20260106"), (2, "2026-W02-1,2026-W02-2")]
    for kind, when in others:
        with pytest.raises(InvalidRequest, match="policy"):
            NoCallPolicy.from_entry(written(kind, when))


def test_an_entry_is_as_long_as_it_was_sent():
    spaced = written(0, "00:00:00,09:00:00").ljust(255)
    assert NoCallPolicy.from_entry(spaced).name == "a"
    with pytest.raises(InvalidRequest, match="at most 255 characters, not 256") as refused:
        NoCallPolicy.from_entry(spaced + " ")
    assert (refused.value.limit, refused.value.length) == (255, 256)


@each_row(
    "key, value",
    [("start_date", "20260105"), ("end_date", "2026-W02-1"), ("bot_id", True), ("bot_id", 1.5), ("bot_id", "\u0667")],
)
def test_a_request_is_read_as_strictly_as_the_platform_describes_it(key, value):
    document = body(task()) | {"bot_id": "7"}
    converter = make_converter(CHINA, MembersShape.PLAIN)
    assert converter.structure(document, CreateCallTask).bot_id == 7
    with pytest.raises(ValueError, match=r"is needed, not|Invalid isoformat"):
        converter.structure(document | {key: value}, CreateCallTask)
