"""The dialect: every gap of the interface description is a field that says what it settles and how well that is known."""

import copy
import inspect
from datetime import UTC, timedelta
from types import MappingProxyType

import attrs
import pytest

from rbim import (
    CHINA,
    CODES,
    AbsentMembers,
    Character,
    Code,
    Dialect,
    Grade,
    InvalidRequest,
    MembersShape,
    NearestMember,
    NotFound,
    OutOfTime,
    Repeat,
    TimeUnit,
    codes as code_table,
)
from rbim.errors import AlreadyMember, ApiError, NotMember, Throttled
from rbim.operations import catalogue

ENUMS = (AbsentMembers, Character, MembersShape, NearestMember, OutOfTime, TimeUnit)
FIELDS = [each.name for each in attrs.fields(Dialect)]


def test_there_is_a_gap_for_every_field_in_order():
    gaps = list(Dialect.gaps())
    assert [gap.name for gap in gaps] == FIELDS
    assert len({gap.settles for gap in gaps}) == len(gaps)


@pytest.mark.parametrize("gap", list(Dialect.gaps()), ids=lambda gap: gap.name)
def test_a_gap_says_what_it_settles_where_and_how_well_that_is_known(gap):
    assert len(gap.settles) > 20
    assert gap.section
    assert isinstance(gap.grade, Grade)
    assert gap.default == getattr(Dialect(), gap.name)
    assert "\n" not in gap.settles  # a row of a table


def test_every_choice_can_be_replaced():
    others = {
        "api_version": "2014-06-30",
        "members_shape": MembersShape.NESTED,
        "zone": UTC,
        "application_concurrency": 10,
        "invite_limit": 5,
        "private_shown_as": "0",
    }
    by_type = {
        **{kind: lambda value: list(type(value))[-1 if value is next(iter(type(value))) else 0] for kind in ENUMS},
        float: lambda value: value / 2,
        bool: lambda value: not value,
        MappingProxyType: lambda _: {},
        tuple: lambda _: (),
        frozenset: lambda _: frozenset(),
    }
    for gap in Dialect.gaps():
        other = others[gap.name] if gap.name in others else by_type[type(gap.default)](gap.default)
        assert getattr(Dialect(**{gap.name: other}), gap.name) == other


def test_defaults_that_change_with_the_evidence():
    """A task without policies has the stated default ones; an empty text clears; nothing in normal mode is sent again."""
    default = Dialect()
    assert (default.default_policies_apply, default.empty_policy_is_none) == (True, True)
    assert (default.empty_text_clears, default.modify_clears_texts) == (True, False)
    assert (default.normal_out_of_time, default.high_guarantee_out_of_time) == (OutOfTime.ACCEPTED, OutOfTime.RESENDS)
    assert (default.delivery_max_age, default.delivery_max_ahead) == (300, 60)


@pytest.mark.parametrize("gap", list(Dialect.gaps()), ids=lambda gap: gap.name)
def test_every_field_refuses_a_value_of_another_type_by_name(gap):
    with pytest.raises(InvalidRequest, match=f"^{gap.name}: ") as caught:
        Dialect(**{gap.name: object()})
    assert caught.value.field == gap.name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("members_shape", "nested"),
        ("message_time_unit", "seconds"),
        ("normal_out_of_time", "refused"),
        ("high_guarantee_out_of_time", "accepted"),
        ("removal_refused_if_absent", "any"),
        ("nearest_member", "next"),
    ],
)
def test_a_choice_of_several_may_be_written_as_text(name, text):
    assert getattr(Dialect(**{name: text}), name) == text
    assert type(getattr(Dialect(**{name: text}), name)) in ENUMS


def test_sets_in_mappings_may_be_lists():
    dialect = Dialect(already_so={"DeleteGroup": ["1"]}, allowed_roles={"DeleteGroup": ["creator", "member"]})
    assert dialect.already_so == {"DeleteGroup": frozenset({"1"})}
    assert dialect.allowed_roles == {"DeleteGroup": frozenset({"creator", "member"})}
    assert Dialect(resend_after=[1]).resend_after == (1,)


def test_the_defaults_are_the_best_that_is_publicly_known():
    default = Dialect()
    assert default.api_version == "2013-12-26"
    assert default.members_shape is MembersShape.PLAIN
    assert default.invite_limit == 50
    assert (default.singular_search, default.bare_task_path) == (False, False)
    assert default.zone.utcoffset(None) == timedelta(hours=8)
    assert default.application_concurrency is None
    assert default.codes is CODES


@pytest.mark.parametrize("name", ["invite_limit", "application_concurrency"])
@pytest.mark.parametrize("wrong", [0, -1, "5", 2.5, True])
def test_limits_are_at_least_one(name, wrong):
    with pytest.raises(InvalidRequest, match=f"{name}: at least 1") as caught:
        Dialect(**{name: wrong})
    assert (caught.value.field, caught.value.limit) == (name, 1)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("members_shape", "triangular"),
        ("members_shape", None),
        ("api_version", ""),
        ("api_version", None),
        ("api_version", 2013),
        ("zone", "Asia/Shanghai"),
        ("zone", None),
        ("singular_search", 1),
        ("normal_out_of_time", "sometimes"),
        ("delivery_max_age", 0),
        ("delivery_max_age", float("inf")),
        ("delivery_max_ahead", "60"),
        ("signature_valid_for", 0),
        ("already_reasons", "the account is in the group already"),
        ("already_reasons", [1]),
        ("already_so", {"DeleteGroup": "900404"}),
        ("already_so", {1: ["900404"]}),
        ("allowed_roles", {"DeleteGroup": ["owner"]}),
        ("allowed_roles", {"DeleteGroup": "creator"}),
        ("notifications", {"join": 5}),
        ("codes", {"900404": NotFound}),
        ("resend_after", 5),
        ("resend_after", [-1]),
        ("resend_after", [True]),
        ("resend_after", ["5"]),
        ("resend_after", [float("nan")]),
    ],
)
def test_a_choice_that_is_none_is_refused_by_name(name, wrong):
    with pytest.raises(InvalidRequest, match=f"^{name}: ") as caught:
        Dialect(**{name: wrong})
    assert caught.value.field == name


def test_a_dialect_is_a_value():
    assert Dialect() == Dialect()
    assert hash(Dialect(invite_limit=5)) == hash(Dialect(invite_limit=5))
    assert Dialect(invite_limit=5) != Dialect()
    assert attrs.evolve(Dialect(), api_version="v2").api_version == "v2"
    assert copy.copy(Dialect()) == Dialect()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Dialect().api_version = "v2"


def test_the_tables_cannot_be_changed_for_everybody():
    with pytest.raises(TypeError):
        CODES["1"] = CODES["161106"]
    with pytest.raises(TypeError):
        Dialect().already_so["DeleteGroup"] = frozenset()


def test_what_counts_as_so_already_is_a_code_of_the_table():
    for operation, codes in Dialect().already_so.items():
        assert {CODES[code].error for code in codes} <= {AlreadyMember, NotMember, NotFound}
        kind = next(entry.operation for entry in catalogue.entries() if entry.operation.spec.name == operation)
        assert kind.spec.repeat is not Repeat.NEVER


@pytest.mark.parametrize("code", CODES)
def test_codes_are_six_digits_in_text(code):
    assert len(code) == 6
    assert code.isascii()
    assert code.isdigit()


def test_a_code_becomes_an_error_and_an_error_a_code():
    mine = Dialect(codes={"700001": Code(error=NotFound, grade=Grade.OFFICIAL, note="seen")})
    assert mine.error_of("700001") is NotFound
    assert mine.error_of("160001") is ApiError
    assert mine.code_of(NotFound) == "700001"
    assert mine.code_of(Throttled) == "160001"  # of rbim's own table, where one's own has none
    assert Dialect().error_of("160001") is Throttled


def test_the_zone_of_china_has_a_name():
    assert str(CHINA) == "UTC+08:00"


def test_every_grade_is_explained():
    source = inspect.getsource(code_table)
    for grade in Grade:
        assert f'{grade.name} = "{grade.value}"\n    """' in source


def test_help_tells_what_each_field_settles_where_and_how_well_that_is_known():
    shown = inspect.getdoc(Dialect)
    assert shown.startswith("The platform's behaviour where")
    assert (
        "- ``api_version``: the version segment of the group paths; the samples use several dates (Versioning; M)" in shown
    )
    assert shown.count("\n- ``") == len(attrs.fields(Dialect))
