"""The dialect: every gap of the interface description is a field that says what it settles and how well that is known."""

from datetime import timedelta
from zoneinfo import ZoneInfo

import attrs
import pytest

from helpers.tables import each_row
from rbim import (
    CODES,
    Code,
    Dialect,
    Grade,
    InvalidRequest,
    MembersShape,
    NotFound,
    Repeat,
)
from rbim.emulator import Rules
from rbim.errors import AlreadyMember, ApiError, NotMember, Throttled
from rbim.operations import catalogue

GAPS = [(kind, gap) for kind in (Dialect, Rules) for gap in kind.gaps()]
OTHERS = {
    "api_version": 'api_version="2016-08-15"',
    "members_shape": "members_shape=MembersShape.NESTED",
    "singular_search": "singular_search=True",
    "bare_task_path": "bare_task_path=True",
    "invite_limit": "invite_limit=5",
    "zone": 'zone=ZoneInfo("Asia/Tokyo")',
    "character": 'character="utf16_unit"',
    "application_concurrency": "application_concurrency=200",
    "max_below_min_refused": "max_below_min_refused=False",
    "reversed_periods_refused": "reversed_periods_refused=False",
    "codes": 'codes={**CODES, "112399": busy}',
    "already_so": 'already_so={"InviteJoinGroup": {"590017"}}',
    "already_reasons": 'already_reasons={"already in group"}',
    "message_time_unit": 'message_time_unit="seconds"',
    "delivery_max_age": "delivery_max_age=3600",
    "delivery_max_ahead": "delivery_max_ahead=None",
    "normal_out_of_time": 'normal_out_of_time="refused"',
    "high_guarantee_out_of_time": 'high_guarantee_out_of_time="accepted"',
    "other_forms_refused": "other_forms_refused=True",
    "modify_clears_texts": "modify_clears_texts=True",
    "invited_member_fails": "invited_member_fails=True",
    "second_join_refused": "second_join_refused=False",
    "private_join_refused": "private_join_refused=False",
    "empty_search_finds_all": "empty_search_finds_all=False",
    "search_ignores_case": "search_ignores_case=True",
    "removal_refused_if_absent": 'removal_refused_if_absent="any"',
    "empty_group_deleted": "empty_group_deleted=False",
    "nearest_member": 'nearest_member="next"',
    "administrators_inherit": "administrators_inherit=False",
    "creator_demotion_refused": "creator_demotion_refused=False",
    "allowed_roles": 'allowed_roles={"DeleteGroup": {"creator"}}',
    "overflow_fails": "overflow_fails=False",
    "default_policies_apply": "default_policies_apply=False",
    "notifications": "notifications={}",
    "resend_after": "resend_after=(60.0,)",
}
"""Another value of each field, as Python code."""


def test_there_is_a_gap_for_every_field_in_order():
    assert [gap.name for _, gap in GAPS] == [each.name for kind in (Dialect, Rules) for each in attrs.fields(kind)]
    assert len({gap.settles for _, gap in GAPS}) == len(GAPS)
    assert (len([*Dialect.gaps()]), len([*Rules.gaps()])) == (18, 17)


@each_row("kind, gap", GAPS)
def test_a_gap_says_what_it_settles_where_and_how_well_that_is_known(kind, gap):
    assert len(gap.settles) > 20
    assert gap.section
    assert isinstance(gap.grade, Grade)
    assert gap.default == getattr(kind(), gap.name)
    assert "\n" not in gap.settles  # a row of a table


@each_row("kind, gap", GAPS)
def test_every_field_takes_another_value_and_changes_nothing_else(kind, gap):
    known = {"MembersShape": MembersShape, "ZoneInfo": ZoneInfo, "CODES": CODES, "busy": CODES["160016"], "kind": kind}
    assert list(eval(f"kind({OTHERS[gap.name]})", known).to_document()) == [gap.name]


@each_row("kind, gap", GAPS)
def test_every_field_refuses_a_value_of_another_type_by_name(kind, gap):
    with pytest.raises(InvalidRequest, match=f"^{gap.name}: ") as caught:
        kind(**{gap.name: object()})
    assert caught.value.field == gap.name


def test_the_defaults_are_the_best_that_is_publicly_known():
    default = Dialect()
    assert default.api_version == "2013-12-26"
    assert default.members_shape is MembersShape.PLAIN
    assert default.invite_limit == 50
    assert (default.singular_search, default.bare_task_path) == (False, False)
    assert default.zone.utcoffset(None) == timedelta(hours=8)
    assert default.application_concurrency is None
    assert default.codes is CODES


@each_row(
    "kind, name, wrong",
    [
        (Dialect, "members_shape", "triangular"),
        (Dialect, "members_shape", None),
        (Dialect, "api_version", ""),
        (Dialect, "api_version", None),
        (Dialect, "api_version", 2013),
        (Dialect, "zone", "Asia/Nowhere"),
        (Dialect, "zone", None),
        (Dialect, "singular_search", 1),
        (Dialect, "invite_limit", True),
        (Dialect, "invite_limit", 10**10),
        (Dialect, "normal_out_of_time", "sometimes"),
        (Dialect, "delivery_max_age", 0),
        (Dialect, "delivery_max_age", float("inf")),
        (Dialect, "delivery_max_age", float("nan")),
        (Dialect, "delivery_max_ahead", "soon"),
        (Dialect, "already_reasons", 5),
        (Dialect, "already_reasons", [1]),
        (Dialect, "already_so", {"DeleteGroup": 900404}),
        (Dialect, "already_so", {1: ["900404"]}),
        (Dialect, "codes", {"900404": NotFound}),
        (Rules, "allowed_roles", {"DeleteGroup": ["owner"]}),
        (Rules, "notifications", {"join": 5}),
        (Rules, "resend_after", 5),
        (Rules, "resend_after", [-1]),
        (Rules, "resend_after", [True]),
        (Rules, "resend_after", ["soon"]),
        (Rules, "resend_after", [float("nan")]),
    ],
)
def test_a_choice_that_is_none_is_refused_by_name(kind, name, wrong):
    with pytest.raises(InvalidRequest, match=f"^{name}: ") as caught:
        kind(**{name: wrong})
    assert caught.value.field == name


def test_what_counts_as_so_already_is_a_code_of_the_table():
    for operation, codes in Dialect().already_so.items():
        assert {CODES[code].error for code in codes} <= {AlreadyMember, NotMember, NotFound}
        kind = next(entry.operation for entry in catalogue.entries() if entry.operation.spec.name == operation)
        assert kind.spec.repeat is not Repeat.NEVER


def test_a_code_becomes_an_error_and_an_error_a_code():
    mine = Dialect(codes={"700001": Code(error=NotFound, grade=Grade.OFFICIAL, note="seen")})
    assert mine.error_of("700001") is NotFound
    assert mine.error_of("160001") is ApiError
    assert mine.code_of(NotFound) == "700001"
    assert mine.code_of(Throttled) == "160001"  # of rbim's own table, where one's own has none
    assert Dialect().error_of("160001") is Throttled
