"""``--field``: the paths, what they select, and what is said of one that selects nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from helpers.serving import served
from rbim.cli import Exit, run
from rbim.cli.field import ANYTHING, check, parse, select, text_lines
from rbim.cli.output import document_of, shape_of
from rbim.emulator import Emulator
from rbim.errors import InvalidRequest
from rbim.operations.catalogue import entries
from rbim.operations.groups import GroupDetail, GroupsFound, Invited

DOCUMENT = {
    "group_id": "g1",
    "count": 3,
    "open": True,
    "none": None,
    "members": [{"account": "1"}, {"account": "2\n3"}],
    "names": ["产品", "b"],
    "any.key": {"x y": 1},
    "empty": [],
}


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (".group_id", ["g1"]),
        ("group_id", ["g1"]),
        (".count", ["3"]),
        (".open", ["true"]),
        (".none", [""]),
        (".members[].account", ["1", r"2\n3"]),
        (".members[0].account", ["1"]),
        (".members.[-1].account", [r"2\n3"]),
        (".members[7].account", [""]),
        (".members[0]", ['{"account": "1"}']),
        (".members", ['{"account": "1"}', r'{"account": "2\n3"}']),
        (".names", ["产品", "b"]),
        (".names[]", ["产品", "b"]),
        ('["any.key"]["x y"]', ["1"]),
        ('.["any.key"]', ['{"x y": 1}']),
        (".empty", []),
        (".empty[]", []),
        (".empty[0]", [""]),
    ],
)
def test_a_path_selects(path, lines):
    try:
        assert text_lines(select(parse(path), DOCUMENT)) == lines
    except InvalidRequest:
        assert path == ".members[7].account"
        assert text_lines(select(parse(path), DOCUMENT, lenient=True)) == lines


def test_a_point_is_the_whole_document_and_an_index_may_begin():
    assert select(parse("."), DOCUMENT) == [DOCUMENT]
    assert text_lines(select(parse("[1]"), [1, 2])) == ["2"]
    assert text_lines(select(parse("[]"), [1, None])) == ["1", ""]
    assert text_lines(select(parse("[][]"), [[1], [2, 3]])) == ["1", "2", "3"]


@pytest.mark.parametrize("path", ["", "..a", "a..b", ".a[", ".a[x]", ".a]", ". a", '.a["', '["\\x"]', ".a[1.5]", "a b"])
def test_a_path_that_is_none_is_shown_with_the_right_form(path):
    with pytest.raises(InvalidRequest, match=r"^--field: .*(use \.name, \[0\], \[\] or|not a text as in JSON)"):
        parse(path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (".grup_id", "--field: there is no .grup_id: the fields are .group_id, .count, .open"),
        (".members[0].name", "--field: there is no .members[0].name: the fields are .members[0].account"),
        (".members.account", "--field: .members is a list: use .members[].account for every entry, or .members[0].account"),
        (".count.x", "--field: .count has no parts, so there is no .count.x"),
        (".none.x", "--field: .none has no parts, so there is no .none.x"),
        ("[0]", "--field: the document is an object with .group_id, .count"),
        ("[]", "--field: the document is an object with .group_id"),
    ],
)
def test_a_field_that_is_not_there_is_named_with_those_that_are(path, said):
    with pytest.raises(InvalidRequest) as raised:
        select(parse(path), DOCUMENT)
    assert raised.value.message.startswith(said)


KEYS = st.text(min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def paths_of(value, path=""):
    """Yield each path of a document with its value, spelled by another road: keys as JSON."""
    yield path or ".", value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        yield from paths_of(child, f"{path}[{json.dumps(step)}]")


@settings(max_examples=50)
@given(VALUES)
def test_every_value_of_every_document_has_a_path(document):
    for path, value in paths_of(document):
        assert select(parse(path), document) == [value]
        (*lines,) = text_lines([value])
        assert all("\n" not in line and line.isprintable() for line in lines)


# ------------------------------------------------------------------------------ the shape of answers


def test_a_shape_is_checked_without_a_document():
    for path in (".name", ".extra.whatever[3].there", ".extra", ".type", "."):
        check(parse(path), shape_of(GroupDetail))
    for path in (".groups[0].name", ".groups[].extra.x", ".groups"):
        check(parse(path), shape_of(GroupsFound))
    for path in (".nam", ".name.x", ".count[0]", ".count[]"):
        with pytest.raises(InvalidRequest):
            check(parse(path), shape_of(GroupDetail))
    with pytest.raises(InvalidRequest, match=r"\.groups is a list"):
        check(parse(".groups.name"), shape_of(GroupsFound))


def test_the_shape_of_each_answer_has_the_fields_of_its_document():
    for entry in entries():
        shape = shape_of(entry.operation.spec.answer)
        assert shape["extra"] is ANYTHING
        made = {name: "" for name in shape if name in {"group_id", "task_id"}}
        document = document_of(entry.operation.spec.answer(**made))
        assert document.keys() <= shape.keys()
        assert shape.keys() - document.keys() == {"extra"}
    assert shape_of(Invited)["fails"] == [{"member": None, "reason": None, "extra": ANYTHING, "account": None}]


# ------------------------------------------------------------------------------ on the command line


@pytest.fixture
def platform(bare_environment, tmp_path):
    emulator = Emulator()
    bare_environment.chdir(tmp_path)
    with served(emulator.asgi) as url:
        bare_environment.setenv("RBIM_BASE_URL", url)
        bare_environment.setenv("RBIM_APP_ID", emulator.credentials.app_id)
        bare_environment.setenv("RBIM_APP_TOKEN", emulator.credentials.app_token.reveal())
        yield emulator


@pytest.fixture
def cli(capsys):
    def call(*tokens):
        code = run([*map(str, tokens)])
        return (code, *capsys.readouterr())

    return call


def test_a_script_takes_what_it_needs(platform, cli):
    code, out, err = cli("groups", "create", "--name", "产品", "--type", "vip", "--field", ".group_id")
    group = out.removesuffix("\n")
    assert (code, err, [*platform.state.groups]) == (Exit.DONE, "", [group])
    assert cli("--field", ".name", "groups", "detail", group) == (Exit.DONE, "产品\n", "")
    assert cli("groups", "detail", group, "--json", "--field=.group_domain") == (Exit.DONE, "\n", "")
    assert cli("groups", "search", "--group-id", group, "--field", ".groups[].group_id") == (Exit.DONE, f"{group}\n", "")
    assert cli("groups", "detail", group, "--field", ".extra.nothing") == (Exit.DONE, "\n", "")
    assert cli("groups", "invite", group, "--members", "1", "2", "--field", ".invited") == (Exit.DONE, "1\n2\n", "")
    assert cli("groups", "invite", group, "--members", "1", "--field", ".fails[0].reason") == (Exit.DONE, "\n", "")


def test_a_wrong_path_is_found_before_anything_is_sent(platform, cli):
    code, out, err = cli("groups", "create", "--name", "x", "--type", "vip", "--field", ".groupid")
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith("rbim: --field: there is no .groupid: the fields are .group_id, .extra\n")
    assert not platform.state.groups
    assert len(platform.requests) == 0


def test_other_commands_have_fields_too(platform, cli, tmp_path):
    assert platform
    assert cli("config", "show", "--field", ".profile") == (Exit.DONE, "\n", "")
    code, out, err = cli("config", "show", "--field", ".profil")
    assert (code, out) == (Exit.USAGE, "")
    assert "the fields are .profile, .values, .missing, .ignored" in err
    assert cli("operations", "--field", "[].operation")[1].startswith("groups.create\n")
    (tmp_path / "rows.csv").write_text("group,account\ng1,1\n", encoding="utf-8")
    assert cli("invite", "rows.csv", "--dry-run", "--field", ".usable") == (Exit.DONE, "1\n", "")


def test_a_command_without_json_has_no_fields(cli):
    code, out, err = cli("completion", "bash", "--field", ".x")
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith("rbim: --field: rbim completion prints no JSON document\n")
    assert cli("groups", "create", "--field", ".x", "--help")[0] == Exit.DONE
    assert cli("operations", "--field", ". x")[0] == Exit.USAGE
    assert cli("operations", "--field")[0] == Exit.USAGE


def test_an_error_leaves_standard_output_empty(platform, cli):
    assert platform
    code, out, err = cli("groups", "detail", "g-none", "--json", "--field", ".name")
    assert (code, out, bool(err)) == (Exit.REFUSED, "", True)
