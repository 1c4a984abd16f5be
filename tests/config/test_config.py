"""Configuration: where each value comes from, what goes before what, and what is said of files that are wrong."""

import json
import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.shown import shown
from helpers.stubs import READ, Stub
from helpers.tables import each_row
from rbim import AppSigner, AsyncClient, Credentials, InvalidRequest, Limits, Rate
from rbim.config import DIALECT_KEYS, KEYS, VARIABLES as TABLE, load, place_of_file

TOKEN = "the-token-nobody-may-see"
OTHER = "another-token-nobody-may-see"
WHOLE = "a whole number from 1 to 2,147,483,647 is needed"
NUMBER = "a number above 0, up to 2,147,483,647, is needed"

TEXTS = {  # what a key may be
    "base_url": "http://%s.example",
    "call_base_url": "http://%s.example",
    "app_id": "app-%s",
    "app_token": f"{TOKEN}-%s",
    "user_name": "boss-%s",
    "user_agent": "shop/%s",
    "group_column": "g-%s",
    "account_column": "a-%s",
    "user_name_column": "u-%s",
}
TRANSPORTS = {"file": "aiohttp", "environment": "auto", "told": "asyncio"}
NUMBERS = {"file": 3, "environment": 7, "told": 11}
LAYERS = ["file", "environment", "told"]
VARIABLES = {
    "base_url": "RBIM_BASE_URL",
    "call_base_url": "RBIM_CALL_BASE_URL",
    "app_id": "RBIM_APP_ID",
    "app_token": "RBIM_APP_TOKEN",
    "user_name": "RBIM_USER_NAME",
    "user_agent": "RBIM_USER_AGENT",
    "transport": "RBIM_TRANSPORT",
    "concurrency": "RBIM_CONCURRENCY",
    "rates": "RBIM_RATES",
    "timeout": "RBIM_TIMEOUT",
    "deadline": "RBIM_DEADLINE",
    "callback_credentials_file": "RBIM_CALLBACK_CREDENTIALS_FILE",
    "group_column": "RBIM_GROUP_COLUMN",
    "account_column": "RBIM_ACCOUNT_COLUMN",
    "user_name_column": "RBIM_USER_NAME_COLUMN",
}
DEFAULTS = {"transport": "httpx", "concurrency": 100, "rates": (), "timeout": 10.0, "deadline": 30.0}


class Home:
    """A user's file, which is not there yet, and a working directory in the folder of a project."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config" / "rbim" / "rbim.toml"
        self.here = folder / "project" / "src" / "deep"
        self.here.mkdir(parents=True)
        self.file.parent.mkdir(parents=True)

    def write(self, text: str) -> Path:
        self.file.write_text(text)
        self.file.chmod(0o600)
        return self.file


@pytest.fixture(autouse=True)
def home(tmp_path, bare_environment):
    made = Home(tmp_path)
    bare_environment.setenv("XDG_CONFIG_HOME", str(made.file.parents[1]))
    bare_environment.chdir(made.here)
    return made


def said(key, layer, home):
    """Return what a layer may say of a key (as TOML, environment's text and told value) and what the setting then is."""
    number = NUMBERS[layer]
    if key == "concurrency":
        return str(number), str(number), number, number
    if key in {"timeout", "deadline"}:
        return str(number), f"{number}.0", number, float(number)
    if key == "rates":
        rates = (Rate(float(number), 1.0), Rate(600.0, 60.0))
        return f'["{number}/s", "600/min"]', f"{number}/s, 600/min", list(rates), rates
    if key == "callback_credentials_file":
        folder = home.file.parent if layer == "file" else Path()
        return f'"{layer}.json"', f"{layer}.json", Path(f"{layer}.json"), folder / f"{layer}.json"
    text = TRANSPORTS[layer] if key == "transport" else TEXTS[key] % layer
    return f'"{text}"', text, text, text


def say(key, layer, home, monkeypatch):
    """Let a layer say something of a key; return what is to be told, what the setting is, and its source."""
    toml, text, value, meant = said(key, layer, home)
    if layer == "told":
        return {key: value}, meant, "argument"
    if layer == "environment":
        monkeypatch.setenv(VARIABLES[key], text)
        return {}, meant, VARIABLES[key]
    file = home.write(f'profile = "test"\n[profiles.test]\n{key} = {toml}\n')
    return {}, meant, f"{file}: profiles.test.{key}"


def open_(value):
    return value.reveal() if hasattr(value, "reveal") else value


# ------------------------------------------------------------------------------ sources and their order


def test_every_key_is_tested_here():
    assert set(VARIABLES) | {"token_file", "token_env"} == set(KEYS)
    assert TABLE == VARIABLES | {"token_file": "RBIM_APP_TOKEN_FILE"}
    assert {*KEYS} & {*DIALECT_KEYS.values()} == set()


@each_row("key", VARIABLES)
@each_row("layers", [LAYERS[:n] for n in range(4)] + [["file", "told"]])
def test_the_highest_layer_that_speaks_is_heard(key, layers, home, monkeypatch):
    home.file.unlink(missing_ok=True)
    told, meant, source = {}, DEFAULTS.get(key), "default"
    for layer in layers:
        told, meant, source = say(key, layer, home, monkeypatch)

    setting = load(**told).values[key]

    assert (open_(setting.value), setting.source) == (meant, source)


def test_the_profile_is_chosen_by_flag_variable_and_file(home, monkeypatch):
    profiles = "".join(f'[profiles.{name}]\napp_id = "{name}"\n' for name in "abc")
    assert load()["app_id"] is None
    home.write(f'profile = "a"\n{profiles}')
    assert load()["app_id"] == "a"
    monkeypatch.setenv("RBIM_PROFILE", "b")
    assert load()["app_id"] == "b"
    assert load("c")["app_id"] == "c"


# ------------------------------------------------------------------------------ which file is read


def test_no_file_of_the_working_directory_or_above_it_is_read(home):
    for folder in (home.here, *home.here.parents[:3]):
        (folder / "rbim.toml").write_text(f'profile = "p"\n[profiles.p]\nbase_url = "http://x"\napp_token = "{TOKEN}"\n')
    warnings = []

    config = load(warn=warnings.append)

    assert [key for key, setting in config.values.items() if setting.source != "default"] == []
    assert (config.place.path, config.profiles, warnings) == (home.file, (), [])
    assert load(file="rbim.toml")["base_url"] == "http://x"


def test_a_file_that_is_named_is_the_only_one(home, tmp_path, monkeypatch):
    home.write('profile = "a"\n[profiles.a]\napp_id = "user"\nuser_name = "user"\n')
    for name in ("named", "told"):
        (tmp_path / f"{name}.toml").write_text(f'profile = "a"\n[profiles.a]\napp_id = "{name}"\n')
    assert (load()["app_id"], load()["user_name"]) == ("user", "user")
    monkeypatch.setenv("RBIM_CONFIG", str(tmp_path / "named.toml"))
    assert (load()["app_id"], load()["user_name"]) == ("named", None)
    assert load(file=tmp_path / "told.toml")["app_id"] == "told"
    assert place_of_file() == ("given", tmp_path / "named.toml", True)


def test_a_named_file_that_is_not_there_is_an_error_that_names_its_path(home, monkeypatch):
    home.write('profile = "a"\n[profiles.a]\n')
    with pytest.raises(InvalidRequest, match=re.escape(f"{home.here}/nowhere.toml: there is no such file")):
        load(file="nowhere.toml")
    monkeypatch.setenv("RBIM_CONFIG", "/nowhere/named.toml")
    with pytest.raises(InvalidRequest, match=r"/nowhere/named\.toml: there is no such file"):
        load()


def test_where_there_is_no_working_directory_the_users_file_is_read(home, tmp_path, monkeypatch):
    home.write('profile = "a"\n[profiles.a]\n')
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert load().profile == "a"


@pytest.mark.parametrize("xdg", ["absolute", "relative", "unset", "no home"])
def test_the_users_file_is_found_without_platformdirs(home, tmp_path, monkeypatch, xdg):
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv("HOME", "." if xdg == "no home" else str(tmp_path / "home"))
    expected = {"absolute": home.file}.get(xdg, tmp_path / "home" / ".config" / "rbim" / "rbim.toml")
    if xdg == "relative":
        monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    if xdg in {"unset", "no home"}:
        monkeypatch.delenv("XDG_CONFIG_HOME")

    assert place_of_file() == (None if xdg == "no home" else ("user", expected, False))


def test_an_empty_variable_says_nothing(home, monkeypatch):
    home.write('profile = "a"\n[profiles.a]\ntimeout = 3\n')
    for name in (*VARIABLES.values(), "RBIM_PROFILE", "RBIM_CONFIG", "RBIM_APP_TOKEN_FILE"):
        monkeypatch.setenv(name, "")

    assert load()["timeout"] == 3.0


# ------------------------------------------------------------------------------ the token


def test_a_token_file_is_beside_the_file_that_names_it(home):
    (home.file.parent / "secret").write_text(f"{TOKEN}\n")
    (home.file.parent / "secret").chmod(0o600)
    home.write('profile = "a"\n[profiles.a]\napp_id = "app"\ntoken_file = "secret"\n')

    config = load()

    assert config.credentials() == Credentials(app_id="app", app_token=TOKEN)
    assert (
        str(config.values["app_token"]) == f"the file {home.file.parent}/secret, named by {home.file}: profiles.a.token_file"
    )


@pytest.mark.usefixtures("home")
def test_a_token_file_that_is_a_directory_is_named_as_one(tmp_path, monkeypatch):
    """Docker makes one where a file to mount is missing; its mode is no advice."""
    monkeypatch.setenv("RBIM_APP_ID", "app")
    monkeypatch.setenv("RBIM_APP_TOKEN_FILE", str(tmp_path))
    warnings = []
    with pytest.raises(InvalidRequest, match="RBIM_APP_TOKEN_FILE names cannot be read: it is a directory"):
        load(warn=warnings.append).credentials()
    assert warnings == []


def test_a_token_file_may_be_in_the_home_directory(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    home.write('profile = "a"\n[profiles.a]\ntoken_file = "~/secret"\n')

    assert load()["app_token"] == tmp_path / "secret"


def test_a_token_may_be_in_a_variable_that_the_file_names(home, monkeypatch):
    home.write('profile = "a"\n[profiles.a]\napp_id = "app"\ntoken_env = "MY_TOKEN"\n')
    config = load()
    with pytest.raises(InvalidRequest, match=r"variable that .*rbim.toml: profiles.a.token_env names is not set"):
        config.credentials()
    assert "MY_TOKEN" not in str(config.values["app_token"])  # it may be the token itself, in the wrong place
    monkeypatch.setenv("MY_TOKEN", TOKEN)

    assert config.credentials().app_token.reveal() == TOKEN
    assert str(config.values["app_token"]).startswith("environment variable MY_TOKEN, named by ")


@pytest.mark.parametrize("form", ["app_token", "token_file", "token_env"])
@pytest.mark.parametrize("above", ["environment", "environment's file", "told"])
def test_a_token_of_a_higher_layer_replaces_every_form_of_one_below(home, monkeypatch, tmp_path, form, above):
    home.write(f'profile = "a"\n[profiles.a]\napp_id = "app"\n{form} = "LOWER"\n')
    secret, told = tmp_path / "secret", {}
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    if above == "environment":
        monkeypatch.setenv("RBIM_APP_TOKEN", TOKEN)
        monkeypatch.setenv("RBIM_APP_TOKEN_FILE", "not there")
    elif above == "environment's file":
        monkeypatch.setenv("RBIM_APP_TOKEN_FILE", str(secret))
    else:
        monkeypatch.setenv("RBIM_APP_TOKEN", OTHER)
        told = {"app_token": TOKEN}

    assert load(**told).credentials().app_token.reveal() == TOKEN


def test_callback_credentials_are_the_applications_and_those_of_the_file(home):
    several = home.file.parent / "several.json"
    several.write_text(json.dumps([{"app_id": "two", "app_token": OTHER}]))
    several.chmod(0o600)
    home.write('[profiles.a]\ncallback_credentials_file = "several.json"\n[profiles.b]\napp_id = "x"\n')
    two = Credentials(app_id="two", app_token=OTHER)
    app = Credentials(app_id="app", app_token=TOKEN)

    assert load("a").callback_credentials() == (two,)
    assert load("a", app_id="app", app_token=TOKEN).callback_credentials() == (app, two)
    assert load("b", app_id="app", app_token=TOKEN).callback_credentials() == (app,)
    with pytest.raises(InvalidRequest, match="RBIM_APP_TOKEN"):
        load("b").callback_credentials()
    several.write_text(f'[{{"app_id": "{TOKEN}"}}]')
    with pytest.raises(
        InvalidRequest, match=r"profiles.a.callback_credentials_file names cannot be used: entry 1"
    ) as caught:
        load("a").callback_credentials()
    assert TOKEN not in shown(caught.value)


def test_a_configuration_shows_no_token(home):
    home.write(f'profile = "a"\n[profiles.a]\napp_id = "app"\napp_token = "{TOKEN}"\n')
    config = load()

    assert TOKEN not in repr(config) + str(config) + repr(dict(config.values)) + str(config.values["app_token"])
    assert config.credentials().app_token.reveal() == TOKEN


# ------------------------------------------------------------------------------ files that others can read


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604, 0o644])
@pytest.mark.parametrize("what", ["app_token", "token_file", "callback_credentials_file", "nothing"])
def test_a_file_with_a_token_that_others_can_read_draws_a_warning(home, mode, what):
    secret = home.file.parent / "a secret"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    value = {"app_token": TOKEN, "nothing": ""}.get(what, "a secret")
    line = f'{what} = "{value}"\n' if value else 'app_id = "app"\n'
    file = home.write(f'profile = "a"\n[profiles.a]\n[profiles.b]\n{line}')
    exposed = file if what in {"app_token", "nothing"} else secret
    exposed.chmod(mode)
    warnings = []

    load("b", warn=warnings.append)

    if what == "nothing" or mode in {0o600, 0o400}:
        assert warnings == []
    else:
        (warning,) = warnings
        assert warning.startswith(f"{exposed}: other users can read this file")
        subprocess.run(warning.partition("To fix it: ")[2], shell=True, check=True)
        load("b", warn=warnings.append)
        assert len(warnings) == 1
    assert not any(TOKEN in warning for warning in warnings)


def test_the_library_logs_the_warning(home, caplog):
    home.write(f'[profiles.a]\napp_token = "{TOKEN}"\n').chmod(0o644)

    load()

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("rbim", logging.WARNING)
    assert "chmod 600" in record.getMessage()


def test_a_token_in_the_place_of_its_files_name_is_not_shown(home):
    home.write(f'profile = "a"\n[profiles.a]\napp_id = "app"\ntoken_file = "{TOKEN}"\n')
    config = load()
    with pytest.raises(InvalidRequest, match=r"the file that .* names does not exist") as caught:
        config.credentials()
    assert TOKEN not in f"{caught.value} {config.values['app_token']}"


# ------------------------------------------------------------------------------ errors


@each_row(
    "text, says",
    [
        ("[profiles.a\n", "line 1, column 12"),
        ('[profiles.a]\napp_token = "T\n', "line 2"),
        ('[profiles.a]\napp_tokn = "T"\n', "profiles.a.app_tokn: unknown key; did you mean app_token?"),
        ('[profiles.a]\nbase-url = "T"\n', "profiles.a.base-url: unknown key; did you mean base_url?"),
        ("[profiles.a]\nzzz = 1\n", "profiles.a.zzz: unknown key; known are base_url, "),
        ('app_token = "T"\n', "app_token is outside of a profile; move it below [profiles.NAME]"),
        ("[profile.a]\n", "profile: the name of the default profile is needed, a text"),
        ("profile = 3\n", "profile: the name of the default profile is needed, a text"),
        ('profile = ""\n', "profile: the name of the default profile is needed, a text"),
        ("[profils.a]\n", "profils: unknown key; did you mean profiles?"),
        ("profiles = 3\n", "profiles: tables are needed, [profiles.NAME]"),
        ('[profiles]\na = "T"\n', "profiles: tables are needed, [profiles.NAME]"),
        ("[profiles.a]\napp_token = 77777\n", "profiles.a.app_token: a text is needed"),
        ('[profiles.a]\napp_token = ""\n', "profiles.a.app_token: a text is needed"),
        ('[profiles.a]\napp_token = ["T"]\n', "profiles.a.app_token: a text is needed"),
        ("[profiles.a]\nbase_url = 1\n", "profiles.a.base_url: an address such as"),
        ("[profiles.a]\ntoken_file = 1\n", "profiles.a.token_file: a text is needed"),
        ('[profiles.a]\ntoken_env = "$MY"\n', "profiles.a.token_env: the name of an environment variable is needed"),
        ('[profiles.a]\ntransport = "htpx"\n', "profiles.a.transport: 'htpx' is not a transport; did you mean httpx?"),
        ("[profiles.a]\ntransport = 1\n", "profiles.a.transport: 1 is not a transport; known are auto, httpx, httpx2"),
        ("[profiles.a]\nconcurrency = 0\n", f"profiles.a.concurrency: {WHOLE}, not 0"),
        ("[profiles.a]\nconcurrency = true\n", f"profiles.a.concurrency: {WHOLE}, not True"),
        ("[profiles.a]\nconcurrency = 1.5\n", f"profiles.a.concurrency: {WHOLE}, not 1.5"),
        ("[profiles.a]\nrates = 50\n", "profiles.a.rates: a list of rates such as Rate(50) or '50/s' is needed"),
        ("[profiles.a]\nrates = [50]\n", "profiles.a.rates: a rate such as Rate(50) or '50/s' is needed"),
        ('[profiles.a]\nrates = ["50"]\n', "profiles.a.rates: invalid rate '50': use 50/s, 600/min or 100/10s"),
        ('[profiles.a]\ntimeout = "1O"\n', f"profiles.a.timeout: {NUMBER}, not '1O'"),
        ("[profiles.a]\ntimeout = inf\n", f"profiles.a.timeout: {NUMBER}, not inf"),
        ("[profiles.a]\ndeadline = nan\n", f"profiles.a.deadline: {NUMBER}, not nan"),
        ("[profiles.a]\ndeadline = -1\n", f"profiles.a.deadline: {NUMBER}, not -1"),
        (f'[profiles.a]\ntimeout = "{"x" * 99}"\n', "not a text of 99 characters"),
        ('[profiles.a]\napp_token = "T"\ntoken_env = "X"\n', "profiles.a.token_env: app_token is set too"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_file_and_place(home, text, says):
    file = home.write(text.replace('"T', f'"{TOKEN}'))

    with pytest.raises(InvalidRequest) as caught:
        load()

    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert not re.search(f"{TOKEN}|77777", shown(caught.value))
    assert TOKEN.encode() not in pickle.dumps(caught.value)


def test_a_file_that_cannot_be_read_is_named(home):
    home.file.write_bytes(f'[profiles.a]\napp_token = "{TOKEN}\xff"'.encode("latin-1"))
    with pytest.raises(InvalidRequest, match="it is not UTF-8") as caught:
        load()
    assert TOKEN not in shown(caught.value)


def test_a_file_that_cannot_be_opened_is_named(home, monkeypatch):
    file = home.write("")

    def refuse(path, *_):
        assert path == file
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InvalidRequest, match=re.escape(f"{file}: Permission denied")):
        load()


def test_a_profile_that_is_nowhere_is_an_error_that_names_those_that_are(home):
    with pytest.raises(InvalidRequest, match=re.escape(f"no profile 'prod' in {home.file}: there are no profiles")):
        load("prod")
    home.write("[profiles.production]\n[profiles.test]\n")
    with pytest.raises(InvalidRequest, match=": there are production, test"):
        load("prod")


@pytest.mark.parametrize("told", [{"app_tokn": TOKEN}, {"app_token": [TOKEN]}, {"app_token": ""}, {"timeout": "soon"}])
def test_what_is_told_wrong_is_named(told):
    (name,) = told
    with pytest.raises(InvalidRequest, match=f"^{name}: ") as caught:
        load(app_id="app", **told)
    assert TOKEN not in shown(caught.value).replace(repr(told), "")


# ------------------------------------------------------------------------------ incomplete configurations, and clients


def test_what_is_missing_is_said(home, monkeypatch):
    assert [line.partition(" is not set")[0].rpartition(" ")[2] for line in load().missing] == [
        "RBIM_BASE_URL",
        "RBIM_APP_ID",
        "RBIM_APP_TOKEN",
    ]
    home.write('[profiles.a]\nbase_url = "http://x"\n')
    assert load().missing[0] == "the environment variable RBIM_BASE_URL is not set, and none of the profiles a is chosen"
    assert load("a").missing[0] == "the environment variable RBIM_APP_ID is not set, and the profile 'a' has no app_id"
    assert load("a").missing[1].endswith("the profile 'a' has no token_file")
    monkeypatch.setenv("RBIM_APP_ID", "app")
    monkeypatch.setenv("RBIM_APP_TOKEN_FILE", "not there")
    (unreadable,) = load("a").missing
    assert unreadable == "the file that RBIM_APP_TOKEN_FILE names does not exist"
    with pytest.raises(InvalidRequest, match="RBIM_APP_TOKEN_FILE names does not exist"):
        load("a").client()


PROFILE = f"""
profile = "test"
[profiles.test]
base_url = "https://gw.example:8883"
call_base_url = "https://calls.example"
app_id = "app"
app_token = "{TOKEN}"
user_name = "boss"
user_agent = "shop/1.2"
transport = "asyncio"
concurrency = 7
rates = ["50/s"]
timeout = 2.5
deadline = 9
"""


async def test_a_client_is_as_the_profile_says(home):
    home.write(PROFILE)
    stub = Stub()

    async with load().client(transport=stub, clock=stub.clock) as client:
        await client.send(READ)

    (request,) = stub.requests
    signed = AppSigner(Credentials(app_id="app", app_token=TOKEN), clock=stub.clock).sign(request)
    assert (request.origin, request.query) == ("https://gw.example:8883", signed.query)
    assert json.loads(request.body) == {"userName": "boss", "groupId": "g1"}
    assert request.headers["User-Agent"].endswith(" shop/1.2")
    assert (client._settings.timeout, client._settings.deadline) == (2.5, 9.0)
    assert client._shared.codec.origins["call_base_url"] == "https://calls.example"


def test_limits_and_transport_are_as_the_profile_says(home):
    home.write(PROFILE)
    made = []

    class Recording(AsyncClient):
        def __init__(self, **options):
            made.append(options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rbim.client.client.AsyncClient", Recording)
        load().client()
        load(transport="httpx").client(limits=Limits(concurrency=1), user_name=None)

    assert made[0]["limits"] == Limits(concurrency=7, rates=(Rate(50.0),))
    assert (made[0]["transport"], made[0]["user_agent"]) == ("asyncio", "shop/1.2")
    assert (made[1]["limits"], made[1]["user_name"]) == (Limits(concurrency=1), None)
    assert made[1]["transport"] == "httpx"


@pytest.mark.parametrize("wrong", ["gopher://gw.example", "https://gw.example/2013-12-26"])
@pytest.mark.parametrize("key", ["base_url", "call_base_url"])
def test_a_wrong_address_is_refused_where_it_stands(home, key, wrong):
    file = home.write(f'[profiles.test]\n{key} = "{wrong}"\n')

    with pytest.raises(InvalidRequest) as caught:
        load("test")
    assert f"{file}: profiles.test.{key}: " in str(caught.value)
    file.unlink()
    with pytest.raises(InvalidRequest, match=f"^{key}: "):
        load(**{key: wrong})
