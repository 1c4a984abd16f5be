"""Which files rbim believes: a project's file may come from another person, and names where signed requests go."""

import grp
import os
import pwd
import re
import socket
import stat
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.projects import write_project
from rbim import InvalidRequest
from rbim.cli import Exit, run
from rbim.client.settings import KEYS
from rbim.config import load
from rbim.config.files import place_of_project, trust
from rbim.config.trust import is_trusted, revoke
from rbim.dialect import Dialect

TOKEN = "0d1d9c4c1b0d4b38a2e1b9cb63c8a1b7"
OTHER_USER = 12345
DAEMON = 1  # a group in which another user is
root_only = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can make files of another user")

HARMLESS = {"transport", "concurrency", "rates", "timeout", "deadline", "group_column", "account_column", "user_name_column"}
NEEDS_TRUST = {
    "base_url": '"http://attacker.example"',
    "call_base_url": '"http://attacker.example"',
    "app_id": '"theirs"',
    "app_token": '"theirs"',
    "token_file": '"their.token"',
    "token_env": '"AWS_SECRET_ACCESS_KEY"',
    "user_name": '"theirs"',
    "callback_credentials_file": '"keys.json"',
    "nats_creds_file": '"their.creds"',
    "nats_ca_file": '"their.pem"',
    "nats_cert_file": '"their.pem"',
    "nats_key_file": '"their.pem"',
}


@pytest.fixture
def project(tmp_path, bare_environment):
    """A cloned repository, in which the user works, with a token in the environment."""
    bare_environment.setenv("RBIM_APP_ID", "app")
    bare_environment.setenv("RBIM_APP_TOKEN", TOKEN)
    bare_environment.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-the-user")
    folder = tmp_path / "clone"
    folder.mkdir()
    bare_environment.chdir(folder)
    return folder / "rbim.toml"


@pytest.fixture
def user_file(bare_environment):  # noqa: ARG001  # it sets the variable
    folder = Path(os.environ["XDG_CONFIG_HOME"], "rbim")
    folder.mkdir()
    return folder / "rbim.toml"


@pytest.fixture
def entries(bare_environment):  # noqa: ARG001  # it sets the variable
    """The folder with the list of trusted files."""
    return Path(os.environ["XDG_DATA_HOME"], "rbim", "trusted")


@contextmanager
def attacker():
    """Listen; yield the address and the bytes that arrive there."""
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    received.append(connection.recv(4096))

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def rbim(*arguments):
    command = [sys.executable, "-c", "import rbim.cli.entry_point as e; e.main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# ------------------------------------------------------------------------------ a cloned repository


def test_the_keys_are_those_of_the_configuration():
    assert {name for name, key in KEYS.items() if key.harmless} == HARMLESS
    assert HARMLESS | NEEDS_TRUST.keys() == KEYS.keys()


@pytest.mark.parametrize("where", ["a profile of its own", "a profile of the user's file", "a token of another variable"])
def test_a_cloned_project_gets_no_signature(project, user_file, where):
    command = ["groups", "search", "--name", "x"]
    with attacker() as (address, received):
        lines = ['profile = "p"', "[profiles.p]", f'base_url = "{address}"']
        if where == "a profile of the user's file":
            del os.environ["RBIM_APP_TOKEN"]
            user_file.write_text(f'profile = "p"\n[profiles.p]\nbase_url = "http://127.0.0.1:1"\napp_token = "{TOKEN}"\n')
            user_file.chmod(0o600)
        if where == "a token of another variable":
            lines.append('token_env = "AWS_SECRET_ACCESS_KEY"')
        project.write_text("\n".join(lines), encoding="utf-8")

        done = rbim(*command)

        assert received == []
        assert done.returncode in {Exit.USAGE, Exit.NOT_SENT}
        assert f"rbim config trust {project}" in done.stderr
        assert rbim("config", "trust").returncode == Exit.DONE
        rbim(*command)
        assert b"sig=" in received[0]  # what the file may do once it is trusted


def test_callbacks_are_not_verified_with_keys_of_a_cloned_project(project):
    (project.parent / "keys.json").write_text('[{"app_id": "app", "app_token": "theirs"}]')
    project.write_text('[profiles.p]\ncallback_credentials_file = "keys.json"\n')

    assert [each.app_token.reveal() for each in load("p").callback_credentials()] == [TOKEN]


@pytest.mark.parametrize("key", NEEDS_TRUST)
def test_a_key_that_needs_trust_is_ignored_and_listed_until_the_file_is_trusted(project, key):
    project.write_text(f"[profiles.p]\n{key} = {NEEDS_TRUST[key]}\ntimeout = 3\n")
    warnings = []

    config = load("p", warn=warnings.append)

    assert config.values[{"token_file": "app_token", "token_env": "app_token"}.get(key, key)].source.file is None
    assert config["timeout"] == 3.0
    ((ignored),) = config.ignored
    assert (ignored.file, ignored.profile, ignored.key) == (project, "p", key)
    (warning,) = (each for each in warnings if "rbim config trust" in each)
    assert f"ignores its {key}. " in warning
    trust(place_of_project(project))
    del os.environ["RBIM_APP_ID"], os.environ["RBIM_APP_TOKEN"]
    trusted = load("p", warn=lambda _: None)
    assert trusted.ignored == ()
    assert next(each for each in trusted.values.values() if each.key == key).source.file == project


def test_the_default_profile_and_the_dialect_need_trust_too(project, user_file):
    user_file.write_text('[profiles.production]\nbase_url = "https://production.example"\n')
    lines = (
        'profile = "production"',
        "[dialect]",
        'api_version = "2016-08-15"',
        "[profiles.production.dialect]",
        "invite_limit = 5",
    )
    project.write_text("\n".join(lines))

    config = load(warn=lambda _: None)

    assert (config.profile, config["base_url"], config.dialect) == (None, None, Dialect())
    assert {each.key for each in config.ignored} == {"profile", "dialect.api_version", "dialect.invite_limit"}


def test_an_ignored_file_warns_only_where_it_would_count(project, user_file):
    user_file.write_text('[profiles.mine]\nbase_url = "https://mine.example"\n')
    project.write_text('[profiles.theirs]\nbase_url = "http://attacker.example"\n')
    warnings = []

    load("mine", warn=warnings.append)
    assert warnings == []
    load("theirs", warn=warnings.append)
    assert len(warnings) == 1


@pytest.mark.parametrize("way", ["argument", "variable", "flag"])
def test_a_file_that_is_named_is_trusted(project, monkeypatch, capsys, way):
    project.write_text('[profiles.p]\nbase_url = "https://mine.example"\n')
    if way == "flag":
        run(["--config", str(project), "--profile", "p", "config", "show"])
        assert "https://mine.example" in capsys.readouterr().out
        return
    if way == "variable":
        monkeypatch.setenv("RBIM_CONFIG", str(project))
    assert load("p", project if way == "argument" else None)["base_url"] == "https://mine.example"


def test_the_users_own_file_is_trusted_also_as_the_nearest_one(user_file, monkeypatch):
    user_file.write_text('profile = "p"\n[profiles.p]\nbase_url = "https://mine.example"\n')
    monkeypatch.chdir(user_file.parent)

    config = load()

    assert (config["base_url"], config.ignored) == ("https://mine.example", ())


# ------------------------------------------------------------------------------ rbim config trust


def test_trust_holds_for_one_content_of_one_file(project, tmp_path, capsys):
    text = '[profiles.p]\nbase_url = "https://mine.example"\n'
    project.write_text(text)
    assert run(["config", "trust"]) == Exit.DONE
    assert f"trusted: {project}\n  profiles.p.base_url: https://mine.example\n" in capsys.readouterr().out
    assert load("p")["base_url"] == "https://mine.example"
    for changed in (text + "\n", text.replace("mine", "evil")):
        project.write_text(changed)
        assert load("p", warn=lambda _: None)["base_url"] is None
    project.write_text(text)
    assert load("p")["base_url"] == "https://mine.example"
    elsewhere = tmp_path / "elsewhere" / "rbim.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(text)
    assert not is_trusted(elsewhere, text.encode())
    for says in ("no longer trusted", "was not trusted"):
        assert run(["config", "untrust", str(project)]) == Exit.DONE
        assert capsys.readouterr().out == f"{says}: {project}\n"
    assert load("p", warn=lambda _: None)["base_url"] is None


def test_untrust_forgets_every_content_of_a_file(project):
    texts = [f'[profiles.p]\nbase_url = "https://{n}.example"\n' for n in range(3)]
    for text in texts:
        write_project(project, text)
    assert revoke(project)
    assert not any(is_trusted(project, text.encode()) for text in texts)


def test_a_file_that_is_not_valid_is_not_trusted(project, capsys):
    project.write_text("[profiles.p\n")
    assert run(["config", "trust"]) == Exit.USAGE
    assert f"rbim: {project}: " in capsys.readouterr().err
    assert not is_trusted(project, project.read_bytes())
    project.unlink()
    assert run(["config", "trust"]) == Exit.USAGE
    assert "there is no rbim.toml in the working directory or above it" in capsys.readouterr().err
    assert run(["config", "trust", "nowhere.toml"]) == Exit.USAGE
    assert "nowhere.toml: No such file or directory" in capsys.readouterr().err


def test_trust_shows_no_token(project, capsys):
    project.write_text(f'[profiles.p]\napp_token = "{TOKEN}"\n')
    project.chmod(0o600)
    run(["config", "trust"])
    assert capsys.readouterr().out.endswith("  profiles.p.app_token: ***\n")


def test_config_show_lists_what_is_ignored_and_why(project, capsys):
    project.write_text('[profiles.p]\nbase_url = "http://attacker.example"\n')
    run(["--profile", "p", "config", "show"])
    shown = capsys.readouterr().out
    assert re.search(rf"base_url +{re.escape(str(project))} \[profiles\.p\]: this file is not trusted", shown)
    assert "attacker" not in shown


def test_the_list_of_trusted_files_is_the_users_alone(project, entries):
    before = os.umask(0)
    try:
        write_project(project, "")
    finally:
        os.umask(before)
    (entry,) = entries.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (entries, entry)] == [0o700, 0o600]


@pytest.mark.parametrize("planted", [pytest.param("owner", marks=root_only), "link", "path", "folder", "pipe"])
def test_an_entry_that_the_user_did_not_make_is_no_trust(project, entries, planted, tmp_path):
    write_project(project, "")
    (entry,) = entries.iterdir()
    if planted == "owner":
        os.chown(entry, OTHER_USER, -1)
    elif planted == "link":
        entry.rename(tmp_path / "moved")
        entry.symlink_to(tmp_path / "moved")
    elif planted == "path":
        entry.write_text("/another/rbim.toml\n")
    else:
        entry.unlink()
        (os.mkdir if planted == "folder" else os.mkfifo)(entry)
    assert not is_trusted(project, b"")


# ------------------------------------------------------------------------------ who could have written the file


def make_unsafe(file, how):
    if how == "owner":
        os.chown(file, OTHER_USER, -1)
    elif how == "link":
        file.rename(file.with_suffix(".moved"))
        file.symlink_to(file.with_suffix(".moved"))
    else:
        os.chown(file, -1, DAEMON) if how == "group" and os.geteuid() == 0 else None
        file.chmod({"group": 0o660, "all": 0o606}[how])


UNSAFE = {
    "owner": "it belongs to another user",
    "link": "it is a symbolic link",
    "group": "its group can write to it",
    "all": "all users can write to it",
}
ways = [pytest.param(how, marks=root_only if how in {"owner", "group"} else ()) for how in UNSAFE]


@pytest.mark.parametrize("how", ways)
def test_a_project_file_that_another_user_could_have_written_is_not_even_read(project, how):
    project.write_text("this is no TOML")
    make_unsafe(project, how)
    warnings = []

    config = load(warn=warnings.append)

    assert [(each.key, each.cause) for each in config.ignored] == [(None, UNSAFE[how])]
    assert warnings == [
        f"{project}: {UNSAFE[how]}, so rbim ignores it. Read the file; to trust it: rbim config trust {project}"
    ]


@pytest.mark.parametrize("how", ways)
def test_trust_in_a_content_holds_whoever_can_write(project, how):
    project.write_text('[profiles.p]\nbase_url = "https://mine.example"\n')
    make_unsafe(project, how)
    trust(place_of_project(project))
    assert load("p")["base_url"] == "https://mine.example"


@pytest.mark.parametrize("how", [each for each in ways if each.values != ("link",)])
def test_a_user_file_that_another_user_could_have_written_is_an_error(user_file, how):
    user_file.write_text('[profiles.p]\nbase_url = "https://mine.example"\n')
    make_unsafe(user_file, how)
    with pytest.raises(InvalidRequest, match=f"{UNSAFE[how]}; correct that, or name the file") as caught:
        load("p")
    assert str(caught.value).startswith(str(user_file))


def test_a_user_file_may_be_a_link_of_the_user(user_file, tmp_path):
    (tmp_path / "dotfiles").write_text('[profiles.p]\nbase_url = "https://mine.example"\n')
    user_file.symlink_to(tmp_path / "dotfiles")
    assert load("p")["base_url"] == "https://mine.example"


@root_only
@pytest.mark.parametrize(("name", "members", "fits"), [("root", [], True), ("root", ["guest"], False), ("users", [], False)])
def test_a_group_of_one_user_alone_counts_as_that_user(user_file, monkeypatch, name, members, fits):
    user_file.write_text('[profiles.p]\nbase_url = "https://mine.example"\n')
    user_file.chmod(0o660)
    os.chown(user_file, -1, 54321)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))
    owner = pwd.struct_passwd(("root", "x", 0, 54321, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: owner)
    if fits:
        assert load("p")["base_url"] == "https://mine.example"
        return
    with pytest.raises(InvalidRequest, match="its group can write to it"):
        load("p")


@root_only
def test_an_access_control_list_is_not_taken_for_a_group_of_one(user_file, monkeypatch):
    """With a list, the group's bits of the mode are a mask for other users."""
    user_file.write_text('[profiles.p]\nbase_url = "https://mine.example"\n')
    user_file.chmod(0o660)
    monkeypatch.setattr("rbim.config.files._is_private_group", lambda *_: True)
    assert load("p")["base_url"] == "https://mine.example"
    entries = [(0x01, 6, -1), (0x02, 6, OTHER_USER), (0x04, 0, -1), (0x10, 6, -1), (0x20, 0, -1)]  # see acl(5)
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)
    try:
        os.setxattr(user_file, "system.posix_acl_access", packed)
    except OSError:
        monkeypatch.setattr(os, "getxattr", lambda *_: packed)  # a file system without such lists
    with pytest.raises(InvalidRequest, match="its group can write to it"):
        load("p")


@root_only
@pytest.mark.parametrize("when", ["before it is opened", "after it was opened"])
def test_a_file_is_judged_by_what_was_opened(user_file, monkeypatch, when):
    """Another user exchanges the file while rbim reads it: between a look at the name and the opening, or later."""
    theirs = user_file.with_suffix(".theirs")
    for path, host in ((user_file, "mine"), (theirs, "theirs")):
        path.write_text(f'[profiles.p]\nbase_url = "https://{host}.example"\n')
    os.chown(theirs, OTHER_USER, -1)
    real = os.open

    def exchanging(path, *arguments, **options):
        if path != user_file:
            return real(path, *arguments, **options)
        if when == "before it is opened":
            theirs.rename(user_file)
            return real(path, *arguments, **options)
        opened = real(path, *arguments, **options)
        theirs.rename(user_file)
        return opened

    monkeypatch.setattr(os, "open", exchanging)
    if when == "before it is opened":
        with pytest.raises(InvalidRequest, match="it belongs to another user"):
            load("p")
    else:
        assert load("p")["base_url"] == "https://mine.example"


def test_a_pipe_in_the_place_of_a_file_does_not_block(project, monkeypatch):
    os.mkfifo(project)
    real = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: path == project or real(path))  # as if it had been exchanged now
    (ignored,) = load(warn=lambda _: None).ignored
    assert ignored.cause == "it is no file"


@root_only
@pytest.mark.parametrize("content", ["x" * 2_000_000, "[", "\xff"])
def test_a_file_of_another_user_stops_no_command(project, capsys, content):
    """In a shared folder, such as /tmp, another user can put an rbim.toml above the working directory of everyone."""
    project.write_text(content, encoding="latin-1")
    os.chown(project, OTHER_USER, -1)

    assert run(["config", "show"]) == Exit.DONE

    shown = capsys.readouterr()
    assert "RBIM_APP_TOKEN" in shown.out
    assert f"{project}: it belongs to another user, so rbim ignores it." in shown.err


# ------------------------------------------------------------------------------ a file without trust fills gaps only


def test_without_trust_a_project_does_not_lift_the_users_limits(project, user_file):
    user_file.write_text('[profiles.p]\nrates = ["5/s"]\nconcurrency = 2\n')
    text = "[profiles.p]\nrates = []\nconcurrency = 100000\ntimeout = 3\n"
    project.write_text(text)
    config = load("p")
    assert ([str(rate.limit) for rate in config["rates"]], config["concurrency"], config["timeout"]) == (["5.0"], 2, 3.0)
    write_project(project, text)
    assert load("p")["concurrency"] == 100000


@pytest.mark.parametrize("says", ['profile = "test"\n[profiles.test]\n', "[profiles.production]\n"])
def test_a_project_that_lost_its_trust_does_not_send_to_another_platform(project, user_file, monkeypatch, says):
    """A comment in the trusted file, and the same command would have gone to the user's own default profile."""
    monkeypatch.delenv("RBIM_APP_ID")
    lines = ('profile = "production"', "[profiles.production]", 'base_url = "https://production"', 'app_id = "a"')
    user_file.write_text("\n".join((*lines, f'app_token = "{TOKEN}"')))
    user_file.chmod(0o600)
    write_project(project, f'{says}base_url = "https://test"\napp_id = "a"\n')
    assert load()["base_url"] == "https://test"
    project.write_text(project.read_text() + "# a comment\n")

    config = load(warn=lambda _: None)

    with pytest.raises(InvalidRequest, match=r"base_url would be from .*, because .* is not trusted, which says otherwise"):
        config.client()
    assert any("is not trusted" in line for line in config.missing)
    if says.startswith("profile"):
        load("production", warn=lambda _: None).client()  # chosen by the user
    load(base_url="https://mine", app_id="a", warn=lambda _: None).client()


def test_a_file_in_a_folder_of_a_trusted_project_does_not_take_its_place(project, monkeypatch):
    write_project(project, 'profile = "p"\n[profiles.p]\nbase_url = "https://test"\ntimeout = 3\n')
    below = project.parent / "vendored" / "rbim.toml"
    below.parent.mkdir()
    below.write_text('profile = "q"\n[profiles.q]\nbase_url = "http://attacker"\n[profiles.p]\ntimeout = 9\ndeadline = 20\n')
    monkeypatch.chdir(below.parent)

    config = load(warn=lambda _: None)

    assert (config.profile, config["base_url"], config["timeout"], config["deadline"]) == ("p", "https://test", 3.0, 20.0)
    assert {each.file for each in config.ignored} == {below}
    write_project(below, 'profile = "q"\n[profiles.q]\nbase_url = "https://nearer"\n')
    assert load()["base_url"] == "https://nearer"


def test_a_list_inside_of_the_project_is_none(project, monkeypatch):
    """The clone may carry it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(project.parent / ".data"))
    project.write_text('[profiles.p]\nbase_url = "http://attacker"\n')
    with pytest.raises(InvalidRequest, match="is inside of the project"):
        trust(place_of_project(project))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("rbim.config.trust._is_inside", lambda *_: False)
        trust(place_of_project(project))
        assert load("p")["base_url"] == "http://attacker"
    assert load("p", warn=lambda _: None)["base_url"] is None


def test_only_files_can_be_trusted(project, capsys, monkeypatch, tmp_path):
    os.mkfifo(project)
    for name in ("rbim.toml", "/dev/zero", "."):
        assert run(["config", "trust", name]) == Exit.USAGE
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(["config", "trust", "rbim.toml"]) == Exit.USAGE
    assert "Traceback" not in capsys.readouterr().err


def test_a_warning_changes_no_terminal_and_forges_no_line_of_a_log(tmp_path, bare_environment, caplog):
    folder = tmp_path / "x\x1b[31m\nERROR forged\u202e"
    folder.mkdir()
    bare_environment.chdir(folder)
    (folder / "rbim.toml").write_text('[profiles.p]\nbase_url = "http://attacker"\n')
    load("p")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage().endswith("to trust it: rbim config trust")
