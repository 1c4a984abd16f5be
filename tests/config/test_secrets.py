"""No error of a configuration shows a token, also one in the wrong place; every malformed file is one clear error."""

import json
import pickle
import re
from itertools import product
from pathlib import Path

import pytest

from helpers.shown import shown
from helpers.tables import each_row
from rbim import InvalidRequest
from rbim.cli import Exit, run
from rbim.config import DIALECT_KEYS, KEYS, VARIABLES, load

TOKENS = ["0d1d9c4c1b0d4b38a2e1b9cb63c8a1b7", "correct-horse-battery", "Tr0ub4dor&3xyz", "123456789012345678"]


@pytest.fixture(autouse=True)
def folder(tmp_path, bare_environment):
    bare_environment.chdir(tmp_path)
    return tmp_path


def refusal(call):
    """Return the InvalidRequest that a call raises, as each call here must: nothing says where the platform is."""
    with pytest.raises(InvalidRequest) as caught:
        call()
    return caught.value


def forms(token):
    """Return values, in TOML's and JSON's notation alike, that have a token in them."""
    return [f'"{token}"', f'["{token}"]', f'"50/s {token}"', f'{{"a": "{token}"}}', f'{{"{token}": 1}}', f'[["{token}"], 1]']


EVERY = [*KEYS, *DIALECT_KEYS]
ANY_TEXT = {"app_id", "app_token", "token_file", "user_name", "user_agent", "callback_credentials_file"}
ANY_TEXT |= {f"{name}_column" for name in ("group", "account", "user_name")}
TAKEN = ANY_TEXT | {f"dialect.{name}" for name in ("api_version", "already_reasons", "already_so")}
"""Keys that take some of those values: what is refused then is that there is no base URL."""


def refused_by_name(error, key):
    return key.rpartition(".")[2] in str(error).partition("is not set")[0].lower()


def test_a_token_under_a_wrong_key_of_a_file_is_not_shown(folder):
    file, taken = folder / "some.toml", set()
    for key, token in product(EVERY, TOKENS):
        name = key.rpartition(".")[2]
        table = "[profiles.p]\n[dialect]" if key in DIALECT_KEYS else "[profiles.p]"
        for form in forms(token):
            value = form.replace('": ', '" = ')
            file.write_text(f"{table}\n{name} = {value}\n")
            error = refusal(lambda: load("p", file).client())
            assert token not in shown(error), (key, form)
            assert token.encode() not in pickle.dumps(error)
            taken |= set() if refused_by_name(error, key) else {key}
    assert taken == TAKEN


def test_a_token_in_a_wrong_variable_or_argument_is_not_shown(bare_environment, capsys):
    taken = {"variable": set(), "argument": set()}
    for key, token in product(EVERY, TOKENS[::3]):  # the reading of a file, above, has all of them
        name = key.rpartition(".")[2]
        for form in forms(token):
            value = json.loads(form)
            text = value if isinstance(value, str) else form
            with bare_environment.context() as patched:
                patched.setenv(VARIABLES.get(key, "RBIM_DIALECT"), f"{name}={text}" if key in DIALECT_KEYS else text)
                error = refusal(lambda: load().client())
            assert token not in shown(error), (key, form)
            taken["variable"] |= set() if refused_by_name(error, key) else {key}
            arguments = {"dialect": {name: value}} if key in DIALECT_KEYS else {key: value}
            error = refusal(lambda arguments=arguments: load(**arguments).client())
            assert token not in shown(error), (key, form)
            taken["argument"] |= set() if refused_by_name(error, key) else {key}
            if key in DIALECT_KEYS and form in forms(TOKENS[0])[2:4]:  # the same reading: two values are enough
                assert run(["--dialect", f"{name}={text}", "groups", "search"]) == Exit.USAGE
                assert token not in "".join(capsys.readouterr()), (key, form)
    assert taken == {"variable": TAKEN | {"token_env"}, "argument": TAKEN}  # token_env has no variable


def test_no_message_shows_a_token_within_the_name_of_a_profile(folder):
    file = folder / "some.toml"
    file.write_text(f'[profiles."app_token = {TOKENS[0]}"]\n')
    assert load(file=file).missing[0].endswith("none of the profiles app_token = *** is chosen")


@each_row("token", [TOKENS[0], TOKENS[3]])
def test_no_message_lists_a_profile_whose_name_may_be_a_token(folder, token):
    file = folder / "some.toml"
    file.write_text(f'[profiles."{token}"]\n[profiles.test]\n')
    with pytest.raises(InvalidRequest, match=r"there are \*\*\*, test$"):
        load("a", file)
    assert load(file=file).missing[0].endswith("none of the profiles ***, test is chosen")
    assert token not in "".join(load(token, file).missing)


PLACES = [
    '{} = "x"\n',
    "[{}]\n",
    '[profiles.p]\n{} = "x"\n',
    '[dialect]\n"{}" = "x"\n',
    '[profiles.p.dialect]\n{} = "x"\n',
    '[dialect.codes]\n{} = "x"\n',
    '[dialect.codes.x]\n{} = "x"\n',
    'profile = "{}"\n',
    'profiles = "{}"\n',
    "profiles = {{ a = '{}' }}\n",
    'app_token = "{}\n',
    "[profiles.{}]\n[profiles.{}]\n",
    "a = {{ {} = 1, {} = 2 }}\n",
    "[profiles]\n{} = 1\n",
    "[profiles.{}]\nfoo = 1\n",
    "app_token = {}\n",
    '[profiles.p]\ntoken_file = "{}\\u0000"\n',
    '[profiles.p]\ntoken_file = "/{}/no/such/file"\n',
]
NAMES_OF_PROFILES = {"[profiles.{}]\n[profiles.{}]\n", "[profiles]\n{} = 1\n", "[profiles.{}]\nfoo = 1\n"}
"""Where the token is the name of a profile, which may be words: only what has a digit is taken for a token."""


@each_row(
    "text, token", [row for row in product(PLACES, TOKENS) if row[0] not in NAMES_OF_PROFILES or re.search("[0-9]", row[1])]
)
def test_a_token_in_the_place_of_a_key_or_beside_a_mistake_is_not_shown(folder, text, token):
    file = folder / "some.toml"
    file.write_text(
        text.replace("{}", token if token.isalnum() or '"{}"' in text else f'"{token}"')
        .replace("{{", "{")
        .replace("}}", "}")
    )
    with pytest.raises(InvalidRequest) as caught:
        load(None if "profile =" in text or "[dialect" in text else "p", file).client(base_url="http://x", credentials=None)
    assert token not in shown(caught.value)


MALFORMED = {
    "an integer of 4,301 digits": f"a = {'9' * 4301}",
    "a hexadecimal integer of 9,000 digits": f"a = 0x{'f' * 9000}",
    "3,000 lists": f"a = {'[' * 3000}{']' * 3000}",
    "3,000 tables": f"a = {'{a=' * 3000}1{'}' * 3000}",
    "a NUL character": "a = 'x\0'",
    "an escaped NUL in an address": '[profiles.p]\nbase_url = "http://x\\u0000"',
    "an escaped NUL in a token": '[profiles.p]\napp_token = "x\\u0000"',
    "an escaped NUL in a path": '[profiles.p]\ntoken_file = "x\\u0000"',
    "an escaped NUL in a path of keys": '[profiles.p]\ncallback_credentials_file = "x\\u0000"',
    "an escaped NUL in a variable": '[profiles.p]\ntoken_env = "x\\u0000"',
    "a lone surrogate": b"a = '\xed\xa0\x80'",
    "no text": b"\xff\xfe\x00",
    "an unfinished text": 'a = "',
    "a date that does not exist": "a = 2026-02-30",
    "nothing but a bracket": "[",
    "seconds of 400 digits": f"[profiles.p]\ntimeout = 1{'0' * 400}",
    "seconds of an age of the universe": "[profiles.p]\ndeadline = 1e308",
    "seconds of the dialect of 400 digits": f"[dialect]\ndelivery_max_age = 1{'0' * 400}",
    "a list for a code": "[dialect.codes]\n1 = []",
    "a table for a list": "[dialect.already_so]\nDeleteGroup = {}",
    "more requests than a computer counts": "[profiles.p]\nconcurrency = 100000000000000000000",
    "hexadecimal requests": f"[profiles.p]\nconcurrency = 0x{'f' * 5000}",
    "twice the same table": "[profiles.p]\n[profiles.p]",
}


@each_row("name, how", product(MALFORMED, ["given", "user"]))
def test_every_malformed_file_is_one_clear_error(folder, bare_environment, capsys, name, how):
    content = MALFORMED[name]
    content = content if isinstance(content, bytes) else content.encode()
    secret = f'\n# app_token = "{TOKENS[0]}"\n'.encode()
    file = folder / "rbim.toml"
    if how == "user":
        file = folder / "config" / "rbim" / "rbim.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        bare_environment.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    file.write_bytes(content + secret)

    with pytest.raises(InvalidRequest) as caught:
        load("p", file if how == "given" else None).credentials()
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value)) < len(str(file)) + 300
    assert TOKENS[0] not in shown(caught.value)
    code = run(["--profile", "p", *(["--config", str(file)] if how == "given" else []), "config", "show"])
    first, *rest = capsys.readouterr().err.splitlines()
    assert (code, len(rest) <= 1) == (2, True)
    assert f"rbim: {file}: " in first  # at its recursion limit Python 3.14 may report a hook of pytest in front of it


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no endless file")
def test_an_endless_file_is_not_read_to_its_end():
    with pytest.raises(InvalidRequest, match="it is longer than"):
        load(app_id="a", token_file="/dev/zero").credentials()
    with pytest.raises(InvalidRequest, match="there is no such file"):
        load(file="/dev/zero")
