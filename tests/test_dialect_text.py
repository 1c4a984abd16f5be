"""Every field of the dialect, whatever it is, has a key, a variable and a flag, and its values survive each of them."""

import json

import pytest

from helpers.dialects import FIELDS, dialect_with, other
from helpers.projects import write_project
from rbim import CODES, AsyncClient, Code, Credentials, Dialect, Grade, InvalidRequest, MembersShape, Throttled
from rbim.cli.context import configuration
from rbim.cli.global_flags import split_global_flags, using_flags
from rbim.client.settings import KEYS
from rbim.config import load
from rbim.dialect_text import client_document, dialect_differences, dialect_fields, dialect_of, dialect_texts

CREDENTIALS = Credentials(app_id="a", app_token="b")
OF_RBIM = ("RBIM_PROFILE", "RBIM_CONFIG", "RBIM_IMPORT", "RBIM_APP_TOKEN_FILE")


@pytest.fixture(autouse=True)
def bare(tmp_path, bare_environment):
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bare_environment.chdir(tmp_path)
    return bare_environment


def toml(value):
    """Return a document as TOML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(each)}' for key, each in value.items())}}}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def text_of(name):
    field = dialect_fields()[name]
    return field.spell(field.write(other(name)))


def by_flags(*tokens):
    flags, rest = split_global_flags(["invite", *tokens])
    assert rest == ["invite"]
    with using_flags(flags):
        return configuration()


def test_every_field_is_there():
    assert list(dialect_fields()) == FIELDS
    for name in FIELDS:
        assert dialect_with(name) != Dialect()


def test_no_variable_has_another_meaning():
    ours = [each.variable for each in dialect_fields().values()]
    assert len(set(ours)) == len(FIELDS)
    assert set(ours) & {*(key.variable for key in KEYS.values()), *OF_RBIM} == set()
    assert set(FIELDS) & set(KEYS) == set()


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("table", ["dialect", "profiles.test.dialect"])
def test_a_field_can_be_chosen_in_a_file(name, table, tmp_path):
    field = dialect_fields()[name]
    text = f'profile = "test"\n[profiles.test]\n[{table}]\n{name} = {toml(field.write(other(name)))}\n'
    write_project(tmp_path / "rbim.toml", text)

    config = load()

    assert config.dialect == dialect_with(name)
    place = "[dialect]" if table == "dialect" else "[profiles.test]"
    assert str(config.values[f"dialect.{name}"]) == f"{tmp_path}/rbim.toml {place}"
    assert [key for key, each in config.values.items() if each.source.file] == [f"dialect.{name}"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_can_be_chosen_by_a_variable(name, bare):
    variable = f"RBIM_{name.upper()}"
    bare.setenv(variable, text_of(name))

    config = load()

    assert config.dialect == dialect_with(name)
    assert str(config.values[f"dialect.{name}"]) == f"environment variable {variable}"
    client = AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS)
    assert client.dialect == dialect_with(name)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("joint", [" ", "="])
def test_a_field_can_be_chosen_by_a_flag(name, joint):
    flag = f"--{name.replace('_', '-')}"

    config = by_flags(*([flag, text_of(name)] if joint == " " else [f"{flag}={text_of(name)}"]))

    assert config.dialect == dialect_with(name)
    assert config.values[f"dialect.{name}"].source.argument


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_can_be_chosen_in_a_program(name):
    written = dialect_fields()[name].write(other(name))
    assert load(dialect={name: written}).dialect == dialect_with(name)
    if not isinstance(written, dict):
        assert load(dialect={name: other(name)}).dialect == dialect_with(name)


@pytest.mark.parametrize("name", FIELDS)
def test_a_journal_keeps_a_field_of_the_client(name):
    document = client_document(dialect_with(name))
    if dialect_fields()[name].gap.only:
        assert document == {}
        return
    assert list(document) == [name]
    assert dialect_of(json.loads(json.dumps(document))) == dialect_with(name)
    (shown,) = dialect_differences(document, {}).values()
    assert shown[0] != shown[1]


def test_a_journal_keeps_nothing_of_the_defaults():
    assert client_document(Dialect()) == {}


def test_values_written_by_hand(bare):
    bare.setenv("RBIM_API_VERSION", "2016-08-15")
    bare.setenv("RBIM_MEMBERS_SHAPE", "nested")
    bare.setenv("RBIM_ZONE", "+09:00")
    bare.setenv("RBIM_CODES", "112399=Throttled,900404=none")
    bare.setenv("RBIM_ALREADY_SO", "DeleteGroup=900404,900405")
    bare.setenv("RBIM_RESEND_AFTER", "60")
    bare.setenv("RBIM_APPLICATION_CONCURRENCY", "none")
    found = load().dialect
    assert (found.api_version, found.members_shape) == ("2016-08-15", MembersShape.NESTED)
    assert found.zone.utcoffset(None).total_seconds() == 9 * 3600
    assert found.codes == {code: row for code, row in CODES.items() if code != "900404"} | {"112399": Code(error=Throttled)}
    assert found.already_so == {**Dialect().already_so, "DeleteGroup": frozenset({"900404", "900405"})}
    assert found.resend_after == (60.0,)
    assert found.application_concurrency is None


def test_a_code_may_have_all_its_fields_in_a_file(tmp_path):
    row = '112399 = {error = "Throttled", grade = "O", note = "seen in our logs", before_effect = true}'
    write_project(tmp_path / "rbim.toml", f"[dialect.codes]\n{row}\n")
    expected = Code(error=Throttled, grade=Grade.OFFICIAL, note="seen in our logs", before_effect=True)
    assert load().dialect.codes == {**CODES, "112399": expected}


def test_the_flag_of_a_list_may_be_repeated():
    found = by_flags(
        "--codes", "112399=Throttled", "--codes", "112398=NotFound", "--resend-after", "1", "--resend-after", "2"
    )
    assert list(found.dialect.codes)[-2:] == ["112399", "112398"]
    assert found.dialect.resend_after == (1.0, 2.0)


def test_a_mapping_may_be_the_default_again(bare):
    bare.setenv("RBIM_CODES", "112399=Throttled")
    assert by_flags("--codes", "default").dialect == Dialect()


# ------------------------------------------------------------------------------ which source is heard


def test_flags_go_before_variables_profiles_and_the_table_of_all_profiles(tmp_path, bare):
    user = tmp_path / "config" / "rbim" / "rbim.toml"
    user.parent.mkdir(parents=True)
    places = [f"v{n}" for n in range(6)]
    shared, of_profile = '[dialect]\napi_version = "{}"\n', '[profiles.p.dialect]\napi_version = "{}"\n'
    user.write_text('profile = "p"\n[profiles.p]\n' + shared.format(places[0]))
    assert load().dialect.api_version == places[0]
    project = tmp_path / "rbim.toml"
    write_project(project, shared.format(places[1]))
    assert load().dialect.api_version == places[1]
    user.write_text('profile = "p"\n' + shared.format(places[0]) + of_profile.format(places[2]))
    assert load().dialect.api_version == places[2]
    write_project(project, shared.format(places[1]) + of_profile.format(places[3]))
    assert load().dialect.api_version == places[3]
    bare.setenv("RBIM_API_VERSION", places[4])
    assert load().dialect.api_version == places[4]
    assert by_flags("--api-version", places[5]).dialect.api_version == places[5]
    assert load(dialect={"api_version": places[5]}).dialect.api_version == places[5]


def test_another_profile_has_another_dialect(tmp_path):
    text = '[profiles.a.dialect]\napi_version = "a"\n[profiles.b]\n[dialect]\napi_version = "all"\ninvite_limit = 5\n'
    write_project(tmp_path / "rbim.toml", text)
    assert [load(name).dialect.api_version for name in ("a", "b", None)] == ["a", "all", "all"]
    assert load("a").dialect.invite_limit == 5


def test_a_client_has_the_dialect_of_its_configuration_unless_it_is_given_one(bare):
    bare.setenv("RBIM_API_VERSION", "v9")
    config = load(base_url="http://a", app_id="a", app_token="b")
    assert config.client().dialect == Dialect(api_version="v9")
    assert config.client(dialect=Dialect()).dialect == Dialect()
    given = AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS, dialect=Dialect(api_version="v1"))
    assert given.dialect.api_version == "v1"


def test_an_empty_variable_chooses_nothing(bare):
    for name in FIELDS:
        bare.setenv(f"RBIM_{name.upper()}", "")
    assert load().dialect == Dialect()
    assert AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS).dialect == Dialect()


# ------------------------------------------------------------------------------ wrong values

WRONG = {
    "members_shape": ("round", "plain or nested is needed, not 'round'"),
    "singular_search": ("maybe", "true or false is needed, not 'maybe'"),
    "invite_limit": ("0", "at least 1, not 0"),
    "application_concurrency": ("many", "a whole number is needed, not 'many' (none is allowed, too)"),
    "zone": ("Asia/Nowher", "a time zone such as Asia/Shanghai or +08:00 is needed, not 'Asia/Nowher'"),
    "codes": ("112399", "a table, or entries such as 111109=AuthenticationError, is needed, not '112399'"),
    "resend_after": ("5,soon", "a number is needed, not 'soon'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variable_is_named_with_what_is_allowed(name, bare):
    text, says = WRONG[name]
    variable = f"RBIM_{name.upper()}"
    bare.setenv(variable, text)
    for read in (load, lambda: AsyncClient.from_env(base_url="http://a", credentials=CREDENTIALS)):
        with pytest.raises(InvalidRequest) as caught:
            read()
        assert (caught.value.message, caught.value.field) == (f"{variable}: {says}", variable)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_flag_is_named_with_what_is_allowed(name):
    text, says = WRONG[name]
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(InvalidRequest) as caught:
        by_flags(flag, text)
    assert (caught.value.message, caught.value.__notes__) == (f"{flag}: {says}", [f"See: rbim dialect {name}"])


@pytest.mark.parametrize(
    ("table", "line", "says"),
    [
        ("dialect", 'members_shape = "round"', "dialect.members_shape: plain or nested is needed, not 'round'"),
        ("dialect", 'invite_limit = "5"', "dialect.invite_limit: a whole number is needed, not '5'"),
        ("dialect", "invite_limit = 0", "dialect.invite_limit: at least 1, not 0"),
        ("dialect", 'member_shape = "plain"', "dialect.member_shape: unknown key; did you mean members_shape?"),
        ("dialect", 'api_version = ""', "dialect.api_version: a text that is not empty is needed, not ''"),
        (
            "dialect.codes",
            '112399 = "Busy"',
            "dialect.codes: 112399: one of ApiError, ",
        ),
        ("profiles.a.dialect", "zone = 8", "profiles.a.dialect.zone: a time zone such as Asia/Shanghai or +08:00 is needed"),
        ("profiles.a", 'dialect = "x"', "profiles.a.dialect: a table is needed, [dialect]"),
        (
            "profiles.a",
            'api_version = "x"',
            "profiles.a.api_version: unknown key; it belongs to the dialect: move it below [profiles.a.dialect]",
        ),
    ],
)
def test_a_wrong_value_in_a_file_is_named_with_what_is_allowed(table, line, says, tmp_path):
    write_project(tmp_path / "rbim.toml", f"[{table}]\n{line}\n")
    with pytest.raises(InvalidRequest) as caught:
        load()
    assert caught.value.message.startswith(f"{tmp_path}/rbim.toml: {says}")


def test_a_field_outside_of_the_table_is_sent_there(tmp_path):
    write_project(tmp_path / "rbim.toml", 'api_version = "x"\n')
    with pytest.raises(
        InvalidRequest, match=r"unknown key api_version; it belongs to the dialect: move it below \[dialect\]"
    ):
        load()


def test_an_unknown_field_of_an_argument_is_named():
    with pytest.raises(InvalidRequest, match=r"dialect.versoin: unknown key; did you mean dialect.api_version\?"):
        load(dialect={"versoin": "x"})


def test_a_field_of_a_newer_version_differs_and_cannot_be_made():
    document = {"colour": "red", "api_version": "v2"}
    assert dialect_texts(document) == {"colour": '"red"', "api_version": "v2"}
    assert dialect_differences(document, {}) == {"api_version": ("v2", "2013-12-26"), "colour": ('"red"', "unknown")}
    with pytest.raises(InvalidRequest, match="colour: this version of rbim has no such field of the dialect"):
        dialect_of(document)


def test_a_value_that_a_field_does_not_take_is_named():
    with pytest.raises(InvalidRequest, match="invite_limit: at least 1, not 0"):
        dialect_of({"invite_limit": 0})
