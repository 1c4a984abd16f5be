"""Every choice, whatever its type, can be made in a file, by a variable, by a flag and in Python, and survives each."""

import json
import sys
import zoneinfo

import attrs
import pytest

from helpers.dialects import FIELDS, dialect_with, other
from helpers.tables import each_row
from rbim import CODES, AsyncClient, Code, Credentials, Dialect, Grade, InvalidRequest, MembersShape, NotFound, Throttled
from rbim.choices import differences, spelled
from rbim.cli.context import configuration
from rbim.cli.global_flags import split_global_flags, using_flags
from rbim.config import load
from rbim.dialect import client_document
from rbim.emulator import Rules

CREDENTIALS = Credentials(app_id="a", app_token="b")
ONLY = {gap.name: gap.only for gap in Dialect.gaps()}


@pytest.fixture(autouse=True)
def bare(tmp_path, bare_environment):
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bare_environment.chdir(tmp_path)
    return bare_environment


@pytest.fixture
def file(bare, tmp_path):
    """The path of the configuration file, which is not there yet."""
    bare.setenv("RBIM_CONFIG", str(tmp_path / "rbim.toml"))
    return tmp_path / "rbim.toml"


def toml(value):
    """Return a document as TOML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(each)}' for key, each in value.items())}}}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def text_of(*names):
    """Return the text of a flag or a variable in which these fields are not the default."""
    documents = Dialect(**{name: other(name) for name in names}).to_document()
    return ",".join(f"{name}={spelled(document)}" for name, document in documents.items())


def by_flags(*tokens):
    flags, rest = split_global_flags(["invite", *tokens])
    assert rest == ["invite"]
    with using_flags(flags):
        return configuration()


@each_row("name", FIELDS)
@each_row("table", ["dialect", "profiles.test.dialect"])
def test_a_field_can_be_chosen_in_a_file(name, table, file):
    document = dialect_with(name).to_document()[name]
    file.write_text(f'profile = "test"\n[profiles.test]\n[{table}]\n{name} = {toml(document)}\n', encoding="utf-8")

    config = load()

    assert config.dialect == dialect_with(name)
    assert config.values[f"dialect.{name}"].source == f"{file}: {table}.{name}"
    assert [key for key, each in config.values.items() if each.source != "default"] == [f"dialect.{name}"]


@each_row("name", FIELDS)
def test_a_field_can_be_chosen_by_the_variable_by_a_flag_and_in_a_program(name, bare):
    document = dialect_with(name).to_document()[name]
    for config in (
        by_flags(f"--dialect={text_of(name)}"),
        by_flags("--dialect", text_of(name)),
        load(dialect={name: document}),
        load(dialect={name: document if isinstance(document, dict) else other(name)}),
    ):
        assert (config.dialect, config.values[f"dialect.{name}"].source) == (dialect_with(name), "argument")
    bare.setenv("RBIM_DIALECT", text_of(name))
    config = load()
    assert (config.dialect, config.values[f"dialect.{name}"].source) == (dialect_with(name), "RBIM_DIALECT")
    client = AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS)
    assert client.dialect == dialect_with(name)


@each_row("name", FIELDS)
def test_a_journal_keeps_a_field_of_the_client(name):
    document = client_document(dialect_with(name))
    if ONLY[name]:
        assert document == {}
        return
    assert list(document) == [name]
    assert Dialect.from_document(json.loads(json.dumps(document))) == dialect_with(name)
    (shown,) = differences(Dialect, document, {}).values()
    assert shown[0] != shown[1]


@each_row("gap", list(Rules.gaps()))
def test_a_rule_is_read_from_what_it_writes(gap):
    rules = Rules.from_document({gap.name: RULES[gap.name]})
    assert rules != Rules()
    assert Rules.from_document(rules.to_document()) == rules
    assert Rules.from_document({name: spelled(each) for name, each in rules.to_document().items()}) == rules


RULES = {gap.name: str(not gap.default).lower() for gap in Rules.gaps() if isinstance(gap.default, bool)} | {
    "removal_refused_if_absent": "any",
    "nearest_member": "next",
    "allowed_roles": {"DeleteGroup": ["creator", "administrator"], "ModifyGroup": "none"},
    "notifications": {"apply": "none"},
    "resend_after": "60",
}


def test_values_written_by_hand(bare):
    parts = [
        "api_version=2016-08-15",
        "members_shape=nested",
        "zone=+09:00",
        'codes={"112399": "Throttled", "900404": "none"}',
        'already_so={"DeleteGroup": ["900404", "900405"]}',
        "already_reasons=done, there already",
        "application_concurrency=none",
    ]
    bare.setenv("RBIM_DIALECT", ",".join(parts))
    found = load().dialect
    assert (found.api_version, found.members_shape) == ("2016-08-15", MembersShape.NESTED)
    assert found.zone.utcoffset(None).total_seconds() == 9 * 3600
    assert found.codes == {code: row for code, row in CODES.items() if code != "900404"} | {"112399": Code(error=Throttled)}
    assert found.already_so == {**Dialect().already_so, "DeleteGroup": frozenset({"900404", "900405"})}
    assert found.already_reasons == {"done", "there already"}
    assert found.application_concurrency is None


def test_a_code_may_have_all_its_fields_in_a_file(file):
    row = '112399 = {error = "Throttled", grade = "O", note = "seen in our logs", before_effect = true}'
    file.write_text(f"[dialect.codes]\n{row}\n", encoding="utf-8")
    expected = Code(error=Throttled, grade=Grade.OFFICIAL, note="seen in our logs", before_effect=True)
    assert load().dialect.codes == {**CODES, "112399": expected}


def test_an_error_of_a_user_is_known_by_its_name():
    class Busy(Throttled):
        pass

    assert Dialect.from_document({"codes": {"1": "Busy"}}).error_of("1") is Busy


# ------------------------------------------------------------------------------ which source is heard


def test_flags_go_before_variables_profiles_and_the_table_of_all_profiles(file, bare):
    places = [f"v{n}" for n in range(4)]
    shared, of_profile = '[dialect]\napi_version = "{}"\n', '[profiles.p.dialect]\napi_version = "{}"\n'
    file.write_text('profile = "p"\n[profiles.p]\n' + shared.format(places[0]))
    assert load().dialect.api_version == places[0]
    file.write_text('profile = "p"\n' + shared.format(places[0]) + of_profile.format(places[1]))
    assert load().dialect.api_version == places[1]
    bare.setenv("RBIM_DIALECT", f"api_version={places[2]}")
    assert load().dialect.api_version == places[2]
    assert by_flags("--dialect", f"api_version={places[3]}").dialect.api_version == places[3]
    assert load(dialect={"api_version": places[3]}).dialect.api_version == places[3]


def test_a_client_has_the_dialect_of_its_configuration_unless_it_is_given_one(bare):
    bare.setenv("RBIM_DIALECT", "api_version=v9")
    config = load(base_url="http://a", app_id="a", app_token="b")
    assert config.client().dialect == Dialect(api_version="v9")
    assert config.client(dialect=Dialect()).dialect == Dialect()
    given = AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS, dialect=Dialect(api_version="v1"))
    assert given.dialect.api_version == "v1"


# ------------------------------------------------------------------------------ wrong values

ZONE = "a time zone such as Asia/Shanghai or +08:00 is needed"
WRONG = {
    "members_shape": ("round", "one of plain, nested is needed, not 'round'"),
    "singular_search": ("maybe", "true or false is needed, not 'maybe'"),
    "invite_limit": ("0", "a whole number from 1 to 2,147,483,647 is needed, not '0'"),
    "application_concurrency": ("many", "a whole number from 1 to 2,147,483,647 is needed, not 'many'"),
    "delivery_max_age": ("inf", "a number above 0, up to 2,147,483,647, is needed, not 'inf'"),
    "zone": ("Asia/Nowher", f"{ZONE}, not 'Asia/Nowher'"),
    "codes": ("112399", 'a table such as {"KEY": "VALUE"} is needed, not \'112399\''),
    "already_so": ("{not", "it begins like JSON, but is not"),
    "colour": ("red", "there is no such field of Dialect"),
}


@each_row("name", WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(name, bare):
    text, says = WRONG[name]
    known = f"{name}: {says}" if name in FIELDS else f"{name}: unknown key; known are {', '.join(FIELDS)}"
    with pytest.raises(InvalidRequest) as caught:
        Dialect.from_document({name: text})
    assert (caught.value.message, caught.value.field) == (f"{name}: {says}", name)
    with pytest.raises(InvalidRequest) as caught:
        by_flags("--dialect", f"{name}={text}")
    assert (caught.value.message, caught.value.__notes__) == (f"--dialect: {known}", ["See: rbim dialect"])
    bare.setenv("RBIM_DIALECT", f"{name}={text}")
    for read in (load, lambda: AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS)):
        with pytest.raises(InvalidRequest) as caught:
            read()
        assert (caught.value.message, caught.value.field) == (f"RBIM_DIALECT: {known}", "RBIM_DIALECT")


@each_row("text, says", [("nested", "KEY=VALUE is needed"), ("zone=Z,zone=Z", "zone is given twice")])
def test_a_text_without_keys_or_with_one_twice_is_refused(text, says, bare):
    with pytest.raises(InvalidRequest, match=f"^--dialect: {says}"):
        by_flags("--dialect", text)
    bare.setenv("RBIM_DIALECT", text)
    with pytest.raises(InvalidRequest, match=f"^RBIM_DIALECT: {says}"):
        load()


@each_row(
    "table, line, says",
    [
        ("dialect", 'members_shape = "round"', "dialect.members_shape: one of plain, nested is needed, not 'round'"),
        (
            "dialect",
            "invite_limit = 5.5",
            "dialect.invite_limit: a whole number from 1 to 2,147,483,647 is needed, not 5.5",
        ),
        ("dialect", "invite_limit = true", "dialect.invite_limit: a whole number"),
        ("dialect", 'member_shape = "plain"', "dialect.member_shape: unknown key; did you mean members_shape?"),
        ("dialect", 'api_version = ""', "dialect.api_version: a text that is not empty is needed, not ''"),
        ("dialect", "already_reasons = [1]", "dialect.already_reasons: a text that is not empty is needed, not 1"),
        ("dialect.codes", '112399 = "Engaged"', "dialect.codes: 112399: the name of an error such as Throttled, "),
        ("dialect.codes", '112399 = {error = "Throttled", colour = 1}', "dialect.codes: 112399: the name of an error"),
        ("profiles.a.dialect", "zone = 8", f"profiles.a.dialect.zone: {ZONE}, not 8"),
        ("profiles.a", 'dialect = "x"', "profiles.a.dialect: a table is needed, [profiles.a.dialect]"),
        ("profiles.a", 'api_version = "x"', "profiles.a.api_version: unknown key; known are base_url, "),
    ],
)
def test_a_wrong_value_in_a_file_is_named_with_what_is_allowed(table, line, says, file):
    file.write_text(f"[{table}]\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidRequest) as caught:
        load("a" if "profiles" in table else None)
    assert caught.value.message.startswith(f"{file}: {says}")


def test_a_field_of_a_newer_version_differs_and_cannot_be_made():
    document = {"colour": "red", "api_version": "v2"}
    assert differences(Dialect, document, {}) == {"api_version": ("v2", "2013-12-26"), "colour": ("red", "unknown")}
    assert differences(Dialect, {"codes": {"1": "NotFound"}}, {}) == {"codes": ('{"1":"NotFound"}', "{}")}
    with pytest.raises(InvalidRequest, match="colour: there is no such field of Dialect"):
        Dialect.from_document(document)


def test_a_machine_without_time_zones_is_told_the_package(monkeypatch):
    zoneinfo.reset_tzpath([])
    for name in {"tzdata"} | {each for each in sys.modules if each.startswith("tzdata.")}:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.ZoneInfo.clear_cache(only_keys=["Asia/Shanghai"])
    try:
        with pytest.raises(InvalidRequest, match="zone: this machine has no time zones: python -m pip install tzdata"):
            Dialect.from_document({"zone": "Asia/Shanghai"})
    finally:
        zoneinfo.reset_tzpath()


def test_a_mapping_in_python_is_the_whole_of_it():
    only = {"1": Code(error=NotFound)}
    assert Dialect(codes=only).codes == only
    assert attrs.evolve(Dialect(codes=only), invite_limit=1).codes == only
