"""The command line and its configuration: profiles, the flags of every command, ``--debug``, ``rbim config``."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading

import pytest
from rich.console import Console

from helpers.dialects import FIELDS
from helpers.serving import served
from rbim.cli import Exit, run
from rbim.cli.errors import REPORTING
from rbim.cli.global_flags import GlobalFlags, split_global_flags
from rbim.config import KEYS
from rbim.credentials import Credentials
from rbim.emulator import Emulator
from rbim.operations.groups import CreateGroup, InviteJoinGroup, QueryGroupDetail
from rbim.transports.asyncio.transport import AsyncioTransport

TOKEN = "the-token-nobody-may-see"
APP = "app-of-the-profile"


@pytest.fixture(scope="module")
def served_platform():
    emulator = Emulator(credentials=Credentials(app_id=APP, app_token=TOKEN))
    with served(emulator.asgi) as url:
        yield emulator, url


@pytest.fixture(autouse=True)
def folder(tmp_path, bare_environment):
    """A working directory with nothing in it, and nothing of the machine's own."""
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    here = tmp_path / "work"
    here.mkdir()
    bare_environment.chdir(here)
    return here


@pytest.fixture
def platform(served_platform):
    emulator, _ = served_platform
    emulator.requests.clear()
    return emulator


@pytest.fixture
def profile(served_platform, folder, bare_environment):
    """Write a file and name it: the profile ``test`` is the emulator, ``other``, the default, is nowhere."""

    def write(**more):
        lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
        text = f"""
            profile = "other"
            [profiles.other]
            base_url = "http://127.0.0.1:1"
            [profiles.test]
            base_url = "{served_platform[1]}"
            app_id = "{APP}"
            token_file = "token"
            user_name = "boss"
        """
        file = folder / "rbim.toml"
        file.write_text("\n".join([*map(str.strip, text.splitlines()), *lines]), encoding="utf-8")
        bare_environment.setenv("RBIM_CONFIG", str(file))
        token = folder / "token"
        token.write_text(f"{TOKEN}\n", encoding="utf-8")
        token.chmod(0o600)
        return file

    return write


@pytest.fixture
def cli(capsys):
    def call(*tokens, debug=False):
        code = run(tokens)
        out, err = capsys.readouterr()
        assert TOKEN not in out + err
        assert debug or "Traceback" not in err
        return code, out, err

    return call


# ------------------------------------------------------------------------------ profiles, end to end


@pytest.mark.parametrize("how", ["flag before", "flag behind", "flag within", "variable"])
def test_an_operation_is_sent_as_the_profile_says(platform, profile, cli, monkeypatch, how):
    profile()
    command = ["groups", "create", "--name", "x", "--type", "vip", "--json"]
    chosen = {
        "flag before": ["--profile", "test", *command],
        "flag behind": [*command, "--profile=test"],
        "flag within": [*command[:2], "--profile", "test", *command[2:]],
        "variable": command,
    }
    if how == "variable":
        monkeypatch.setenv("RBIM_PROFILE", "test")

    code, out, err = cli(*chosen[how])

    assert (code, err) == (Exit.DONE, "")
    assert platform.state.groups[json.loads(out)["group_id"]].owner == "boss"
    assert len(platform.requests.of(CreateGroup)) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_configuration_may_come_through_a_pipe(platform, profile, cli, folder):
    text = profile().read_text(encoding="utf-8")
    (folder / "rbim.toml").unlink()
    os.mkfifo(folder / "pipe")
    writing = threading.Thread(target=(folder / "pipe").write_text, args=(text,), daemon=True)
    writing.start()

    code, out, err = cli(
        "--config", "pipe", "--profile", "test", "groups", "create", "--name", "x", "--type", "vip", "--json"
    )

    writing.join(60)
    assert (code, err) == (Exit.DONE, "")
    assert json.loads(out)["group_id"] in platform.state.groups


def test_flags_go_before_the_environment_and_this_before_the_profile(served_platform, profile, cli, monkeypatch):
    profile(transport="httpx")
    monkeypatch.setenv("RBIM_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("RBIM_PROFILE", "test")
    used = []
    enter = AsyncioTransport.__aenter__
    monkeypatch.setattr(AsyncioTransport, "__aenter__", lambda self: used.append(self) or enter(self))
    asked = ["groups", "search", "--name", "nothing-like-it"]

    assert cli(*asked)[0] == Exit.NOT_SENT
    assert cli(*asked, "--base-url", served_platform[1])[0] == Exit.DONE
    assert not used
    assert cli(*asked, "--base-url", served_platform[1], "--transport", "asyncio")[0] == Exit.DONE
    assert len(used) == 1


@pytest.fixture
def rows(folder):
    (folder / "rows.csv").write_text("group,account\ng1,a\ng1,b\ng2,a\n", encoding="utf-8")
    return "rows.csv"


def test_a_job_is_run_and_resumed_as_the_profile_says(platform, profile, rows, cli, folder):
    profile(concurrency=3)
    _, made, _ = cli("--profile", "test", "groups", "create", "--name", "x", "--type", "vip", "--json")
    (folder / rows).write_text(f"group,account\n{json.loads(made)['group_id']},a\n", encoding="utf-8")

    code, out, _ = cli("invite", rows, "--profile", "test", "--json", "--quiet")

    assert (code, json.loads(out)["accounts"]["total"]) == (Exit.DONE, 1)
    (sent,) = platform.requests.of(InviteJoinGroup)
    assert sent.user_name == "boss"
    code, _, err = cli("job", "resume", "rows.csv.invite.journal", "--profile", "test", "--quiet")
    assert (code, err) == (Exit.DONE, "")
    code, _, err = cli("job", "resume", "rows.csv.invite.journal", "--quiet")
    assert code == Exit.USAGE
    assert "'other' has no app_id" in err


def test_callback_commands_use_the_profiles_credentials(profile, cli):
    profile()
    asked = ["callback", "send", "x", "--url", "http://127.0.0.1:1/"]

    assert cli(*asked)[0] == Exit.USAGE
    assert cli(*asked, "--profile", "test")[0] == Exit.NOT_SENT


# ------------------------------------------------------------------------------ the flags of every command


@pytest.mark.parametrize(
    ("tokens", "flags", "rest"),
    [
        ([], {}, []),
        (["a", "b"], {}, ["a", "b"]),
        (["--debug", "a"], {"debug": True}, ["a"]),
        (["a", "--debug", "b", "--config", "f"], {"debug": True, "config": "f"}, ["a", "b"]),
        (["a", "--base-url=http://x?a=b"], {"base_url": "http://x?a=b"}, ["a"]),
        (["a", "--transport", "asyncio", "--x=--debug"], {"transport": "asyncio"}, ["a", "--x=--debug"]),
        (["a", "--", "--debug"], {}, ["a", "--", "--debug"]),
        (["a", "-", "profile", "--profiles"], {}, ["a", "-", "profile", "--profiles"]),
        (["groups", "create", "--debug", "--name", "x"], {"debug": True}, ["groups", "create", "--name", "x"]),
        (["a", "--dialect", "zone=-05:00", "b"], {"dialect": ("zone=-05:00",)}, ["a", "b"]),
        (["a", "--dialect=x=1", "b", "--dialect", "y=2"], {"dialect": ("x=1", "y=2")}, ["a", "b"]),
        (["--version"], {"version": True}, []),
        (["groups", "detail", "--version", "g1"], {"version": True}, ["groups", "detail", "g1"]),
        (["--version", "--debug"], {"debug": True, "version": True}, []),
    ],
)
def test_flags_of_every_command_are_taken_out_of_a_line(tokens, flags, rest):
    assert split_global_flags(tokens) == (GlobalFlags(**flags, words=tuple(tokens)), rest)


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (["groups", "detail", "g1", "--profile"], "--profile needs a value: NAME"),
        (["--profile="], "--profile needs a value: NAME"),
        (["--config", "--debug"], "--config needs a value: FILE"),
        (["--debug=yes"], "--debug takes no value"),
        (["--profile", "a", "operations", "--profile", "b"], "--profile is given twice"),
        (["--debug", "--debug"], "--debug is given twice"),
        (["a", "--dialect"], "--dialect needs a value: KEY=VALUE"),
    ],
)
def test_a_wrong_flag_is_said_in_two_lines(cli, tokens, says):
    assert cli(*tokens) == (Exit.USAGE, "", f"rbim: {says}\nSee: rbim --help\n")


# ------------------------------------------------------------------------------ --debug


@pytest.mark.usefixtures("platform")
def test_debug_logs_attempts_and_shows_tracebacks(profile, cli):
    profile()
    before = logging.getLogger("rbim").level, list(logging.getLogger("rbim").handlers)

    code, out, err = cli("--profile", "test", "groups", "detail", "g0", "--debug", debug=True)
    quiet = cli("--profile", "test", "groups", "detail", "g0")[2]

    assert (code, out) == (Exit.REFUSED, "")
    assert re.search(r"^DEBUG rbim.*QueryGroupDetail", err, re.MULTILINE)
    assert "Traceback (most recent call last):" in err
    assert "sig=" not in err
    assert "Authorization" not in err
    assert err.endswith(quiet)
    assert (logging.getLogger("rbim").level, logging.getLogger("rbim").handlers) == before


def test_what_nobody_expected_is_two_lines_and_with_debug_a_traceback(cli, monkeypatch):
    def break_down():
        reason = "it is\x1b[31m broken"
        raise LookupError(reason)

    monkeypatch.setattr("rbim.cli.operations.entries", break_down)
    expected = f"rbim: a bug in rbim: LookupError: it is\ufffd[31m broken\n{REPORTING}\n"

    assert cli("operations") == (Exit.FAULT, "", expected)
    code, _, err = cli("operations", "--debug", debug=True)
    assert code == Exit.FAULT
    assert "break_down" in err
    assert "\x1b" not in err
    assert err.endswith(expected)


@pytest.mark.parametrize("content", ["def (", "raise ValueError('no')", "raise SystemExit(3)"])
def test_a_module_that_fails_is_named(cli, folder, monkeypatch, content):
    (folder / "failing_module.py").write_text(content, encoding="utf-8")
    monkeypatch.setenv("RBIM_IMPORT", "failing_module")

    code, out, err = cli("operations")

    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith("rbim: cannot import failing_module, which RBIM_IMPORT names: ")
    assert len(err.splitlines()) == 1

    code, out, err = cli("operations", "--debug", debug=True)
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith("Traceback")
    assert "in _import_modules" in err


# ------------------------------------------------------------------------------ rbim config


def test_config_show_says_what_is_known_and_where_from(profile, cli, monkeypatch, served_platform):
    file = profile(rates=["50/s", "600/min"], transport="aiohttp")
    monkeypatch.setenv("RBIM_TIMEOUT", "3")

    code, out, err = cli("config", "show", "--profile", "test", "--transport", "asyncio")

    assert (code, err) == (Exit.DONE, "")
    first, _, _, _, *lines = out.splitlines()
    assert first == "profile: test"
    lines, dialect = lines[: len(KEYS) - 2], lines[len(KEYS) + 1 :]
    assert [line.split()[0] for line in dialect] == [f"dialect.{name}" for name in FIELDS]
    rows = {line.split()[0]: re.split(r"\s{2,}", line.strip())[1:] for line in dialect}
    assert rows["dialect.api_version"] == ["2013-12-26", "default"]
    assert rows["dialect.application_concurrency"] == ["none", "default"]
    assert rows["dialect.codes"] == ["{}", "default"]
    here = f"{file}: profiles.test"
    assert {re.split(r"\s{2,}", line.strip(), maxsplit=2)[0]: re.split(r"\s{2,}", line.strip())[1:] for line in lines} == {
        "base_url": [served_platform[1], f"{here}.base_url"],
        "call_base_url": ["-", "-"],
        "app_id": [APP, f"{here}.app_id"],
        "app_token": ["***", f"the file {file.parent}/token, named by {here}.token_file"],
        "user_name": ["boss", f"{here}.user_name"],
        "user_agent": ["-", "-"],
        "transport": ["asyncio", "flag --transport"],
        "concurrency": ["100", "default"],
        "rates": ["50/s, 600/min", f"{here}.rates"],
        "timeout": ["3.0", "RBIM_TIMEOUT"],
        "deadline": ["30.0", "default"],
        "callback_credentials_file": ["-", "-"],
        "group_column": ["-", "-"],
        "account_column": ["-", "-"],
        "user_name_column": ["-", "-"],
    }


def test_config_show_has_each_field_of_the_dialect_with_its_source(profile, cli, monkeypatch):
    file = profile()
    more = '\n[dialect]\nsingular_search = true\n[profiles.test.dialect]\ncodes = {112399 = "Throttled"}\n'
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    monkeypatch.setenv("RBIM_DIALECT", "already_reasons=done, there already")
    flags = ["--dialect", "api_version=2016-08-15", "--dialect=invite_limit=5"]

    code, out, err = cli("--profile", "test", "config", "show", "--json", *flags)

    assert (code, err) == (Exit.DONE, "")
    values = {key: (row["value"], row["source"]) for key, row in json.loads(out)["values"].items()}
    assert values["dialect.api_version"] == ("2016-08-15", "flag --dialect")
    assert values["dialect.invite_limit"] == (5, "flag --dialect")
    assert values["dialect.already_reasons"] == (["done", "there already"], "RBIM_DIALECT")
    assert values["dialect.codes"] == ({"112399": "Throttled"}, f"{file}: profiles.test.dialect.codes")
    assert values["dialect.singular_search"] == (True, f"{file}: dialect.singular_search")
    assert values["dialect.zone"] == ("UTC+08:00", "default")
    assert not any(row["missing"] for key, row in json.loads(out)["values"].items() if key.startswith("dialect."))


@pytest.mark.parametrize("form", ["app_token", "token_env", "variable"])
def test_config_show_masks_a_token_of_any_form(cli, folder, monkeypatch, form):
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    value = {"app_token": TOKEN, "token_env": "MY_TOKEN"}.get(form)
    if value is None:
        monkeypatch.setenv("RBIM_APP_TOKEN", TOKEN)
    file = folder / "rbim.toml"
    file.write_text(f'profile = "a"\n[profiles.a]\n{form} = "{value}"\n' if value else "")
    file.chmod(0o600)
    monkeypatch.setenv("RBIM_CONFIG", str(file))
    source = {
        "app_token": f"{file}: profiles.a.app_token",
        "token_env": f"environment variable MY_TOKEN, named by {file}: profiles.a.token_env",
        "variable": "RBIM_APP_TOKEN",
    }[form]

    _, shown, _ = cli("config", "show")
    _, document, _ = cli("config", "show", "--json")

    assert re.search(rf"app_token +\*\*\* +{re.escape(source)}", shown)
    assert json.loads(document)["values"]["app_token"] == {"value": "***", "source": source, "missing": False}


def test_config_path_shows_which_file_is_read(cli, folder, tmp_path, monkeypatch):
    user = tmp_path / "config" / "rbim" / "rbim.toml"
    (folder / "rbim.toml").write_text("")

    assert cli("config", "path") == (Exit.DONE, f"{user} (does not exist)\n", "")
    assert json.loads(cli("config", "path", "--json")[1]) == {"kind": "user", "path": str(user), "exists": False}
    assert cli("config", "path", "--config", "rbim.toml")[1] == f"{folder}/rbim.toml\n"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", ".")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert cli("config", "path")[1].startswith("no file: there is no home directory")
    assert cli("config", "path", "--json")[1] == "null\n"


def test_no_command_reads_a_file_of_the_working_directory_that_is_not_named(platform, profile, cli, folder, monkeypatch):
    profile()
    monkeypatch.delenv("RBIM_CONFIG")
    (folder / "below").mkdir()
    asked = ["groups", "detail", "g0"]
    for here in (folder, folder / "below"):
        monkeypatch.chdir(here)
        code, _, err = cli(*asked)
        assert (code, err.partition(" is not set")[0]) == (Exit.USAGE, "rbim: the environment variable RBIM_BASE_URL")
        code, _, err = cli(*asked, "--profile", "test")
        assert (code, "there is no profile 'test' in" in err) == (Exit.USAGE, True)
    assert not list(platform.requests)

    assert cli(*asked, "--config", "../rbim.toml", "--profile", "test")[0] == Exit.REFUSED
    assert len(platform.requests.of(QueryGroupDetail)) == 1


def test_a_transport_whose_extra_is_missing_is_one_line(profile, cli, monkeypatch):
    profile()
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "rbim.transports.httpx2", raising=False)

    code, out, err = cli("--profile", "test", "--transport", "httpx2", "groups", "search", "--name", "x")

    assert (code, out) == (Exit.USAGE, "")
    assert len(err.splitlines()) == 1
    assert "rbim[httpx2]" in err


@pytest.mark.parametrize("how", ["variables", "profile"])
def test_the_columns_of_an_input_can_be_configured(cli, folder, monkeypatch, how):
    columns = {"group_column": "gruppe", "account_column": "konto", "user_name_column": "wer"}
    if how == "variables":
        for key, value in columns.items():
            monkeypatch.setenv(f"RBIM_{key.upper()}", value)
    else:
        lines = [f'{key} = "{value}"' for key, value in columns.items()]
        (folder / "rbim.toml").write_text("\n".join(["[profiles.p]", *lines]))
        monkeypatch.setenv("RBIM_CONFIG", "rbim.toml")
        monkeypatch.setenv("RBIM_PROFILE", "p")
    (folder / "rows.csv").write_text("gruppe,konto,wer\ng1,a,boss\ng1,b,boss\ng2,a,boss\n")
    (folder / "plain.csv").write_text("group,account,boss\ng1,a,b\n")

    _, out, err = cli("invite", "rows.csv", "--dry-run", "--json")
    assert (json.loads(out)["rows"], json.loads(out)["groups"], err) == (3, 2, "")
    code, _, err = cli("invite", "plain.csv", "--dry-run")
    assert (code, "no column 'konto' among 'group', 'account', 'boss'" in err) == (Exit.USAGE, True)
    monkeypatch.setenv("RBIM_USER_NAME_COLUMN", "boss")
    flags = ("--group-column", "group", "--account-column", "account")
    assert cli("invite", "plain.csv", "--dry-run", *flags)[0] == Exit.DONE


def test_a_narrow_terminal_has_lines_in_place_of_columns(cli, monkeypatch):
    monkeypatch.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", "a" * 30)
    monkeypatch.setattr("rbim.cli.output.console", lambda: Console(file=sys.stdout, width=40, highlight=False))
    lines = cli("config", "show")[1].splitlines()
    assert max(map(len, lines)) <= 40
    at = lines.index("callback_credentials_file")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [
        "value: a file that does not exist",
        "source: RBIM_CALLBACK_CREDENTIALS_FILE",
    ]


def test_a_locale_that_is_not_utf8_is_named(cli, monkeypatch):
    for name, value in {"BASE_URL": "http://127.0.0.1:9", "APP_ID": "a", "APP_TOKEN": "t", "USER_NAME": "u"}.items():
        monkeypatch.setenv(f"RBIM_{name}", value)
    for encoding, hint in (("utf-8", "See: rbim groups create --help"), ("ascii", "set PYTHONUTF8=1")):
        monkeypatch.setattr(sys, "getfilesystemencoding", lambda encoding=encoding: encoding)
        code, _, err = cli("groups", "create", "--name", "\udce4\udcba", "--type", "vip")
        assert (code, hint in err) == (Exit.USAGE, True)
