"""The dialect: every gap of the interface description is a field that says what it settles and how well that is known."""

from datetime import timedelta

import attrs
import pytest

from helpers.tables import each_row
from rbim import CODES, Code, Dialect, Grade, InvalidRequest, MembersShape, NotFound, Repeat
from rbim.emulator import Rules
from rbim.errors import AlreadyMember, ApiError, NotMember, Throttled
from rbim.operations import catalogue

GAPS = [(kind, gap) for kind in (Dialect, Rules) for gap in kind.gaps()]


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
