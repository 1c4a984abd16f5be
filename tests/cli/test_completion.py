"""Completion in real shells: bash, zsh and fish, where they are installed; and its installation in a home of its own."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from rbim.cli import Exit, run

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals")

PATIENCE = 60
FILES = ("members.csv", "capture.http", "task.toml", "events.db", "plan.json")
DONE = {
    "rbim invite mem": "members.csv",
    "rbim remove mem": "members.csv",
    "rbim invite --encoding gb18030 mem": "members.csv",
    "rbim invite members.csv --not-done mem": "members.csv",
    "rbim job status mem": "members.csv",
    "rbim job report members.csv --csv mem": "members.csv",
    "rbim callback explain cap": "capture.http",
    "rbim callback status ev": "events.db",
    "rbim callback letters list ev": "events.db",
    "rbim callback letters show ev --quarantine": "events.db",
    "rbim callback serve --inbox ev": "events.db",
    "rbim callback work app:router --inbox ev": "events.db",
    "rbim callback replay --inbox ev": "events.db",
    "rbim callback send --body cap": "capture.http",
    "rbim emulator --faults pl": "plan.json",
    "rbim config trust ta": "task.toml",
    "rbim demo --csv mem": "members.csv",
    "rbim groups create ta": "task.toml",
    "rbim groups invite --file ta": "task.toml",
    "rbim --config ta": "task.toml",
    "rbim do": "doctor",
    "rbim groups cr": "create",
}
"""The beginning of a command line, and the word that the last one of it becomes."""

SOME = [each for each in DONE if each.split()[1] in {"invite", "callback", "groups", "do"}][::3]
"""Those that are tried key by key at a terminal, which takes longer."""


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A home, and the files that are to be completed in the working directory."""
    here = tmp_path / "here"
    here.mkdir()
    for name in FILES:
        (here / name).touch()
    monkeypatch.chdir(here)
    for name in ("ZDOTDIR", "ZSH", "ZSH_CUSTOM", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def script(capsys):
    def make(shell, *flags):
        assert run(["completion", shell, *flags]) == Exit.DONE
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return make


def environment(home):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
    return kept | {"HOME": str(home), "PATH": path, "TERM": "dumb", "PS1": "> "}


@contextmanager
def terminal(command, home):
    """Give functions to type at a shell in a terminal, and to wait for a text that it shows."""
    pid, fd = pty.fork()
    if pid == 0:  # pragma: no cover  # another program
        os.execvpe(command[0], command, environment(home))
    shown = b""

    def wait_for(pattern):
        nonlocal shown
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, shown.decode(errors="replace"))) is None:
            assert time.monotonic() < end, shown
            if select.select([fd], [], [], 0.2)[0]:
                shown += os.read(fd, 4096)
        shown = b""
        return found

    try:
        yield lambda keys: os.write(fd, keys.encode()), wait_for
    finally:
        os.close(fd)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def completed(command, home, beginning):
    """Return the last word of each line after the key Tab at a terminal."""
    words = []
    with terminal(command, home) as (write, wait_for):
        write("echo ready-$((40 + 2))\n")
        wait_for("ready-42")
        for number, line in enumerate(beginning):
            write(f"{line}\t")
            write(f"\x01echo line-{number}: \n")  # Ctrl-A: to the beginning of the line
            words.append(wait_for(rf"\nline-{number}: (.*?)\s*\r?\n")[1].split()[-1])
    return words


# ------------------------------------------------------------------------------ bash

TRY = """
source ./rbim.bash
try() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _rbim
    echo "${COMPREPLY[*]}"
}
"""


@needs("bash")
def test_bash_completes_files_wherever_one_is_named(script):
    Path("rbim.bash").write_text(script("bash"), encoding="utf-8")
    text = TRY + "\n".join(f"try {line}" for line in DONE)
    done = subprocess.run(["bash", "-uc", text], capture_output=True, timeout=PATIENCE, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert dict(zip(DONE, done.stdout.splitlines(), strict=True)) == DONE


@needs("bash")
def test_bash_completes_at_a_terminal_once_it_is_installed(script, folder):
    path, start_up = script("bash", "--install").splitlines()
    assert start_up == str(folder / ".bashrc")
    assert Path(path).is_file()
    assert completed(["bash", "-i"], folder, SOME) == [DONE[line] for line in SOME]
    assert script("bash", "--install").splitlines() == [path]


# ------------------------------------------------------------------------------ zsh


@needs("zsh")
@pytest.mark.parametrize("before", [None, "setopt beep", "autoload -Uz compinit; compinit -u\n"])
def test_zsh_completes_once_it_is_installed_also_in_a_home_without_compinit(before, script, folder):
    start_up = folder / ".zshrc"
    if before is not None:
        start_up.write_text(before, encoding="utf-8")
    assert script("zsh", "--install").splitlines()[1:] == [str(start_up)]
    text = start_up.read_text(encoding="utf-8")
    assert (before or "") in text
    assert text.count("compinit && compinit") == (0 if "compinit" in (before or "") else 1)
    assert completed(["zsh", "-i"], folder, SOME) == [DONE[line] for line in SOME]
    assert len(script("zsh", "--install").splitlines()) == 1
    assert start_up.read_text(encoding="utf-8") == text


def test_zsh_is_set_up_where_it_reads_its_files(script, folder, monkeypatch):
    monkeypatch.setenv("ZDOTDIR", str(folder / "dots"))
    path, start_up = script("zsh", "--install").splitlines()
    assert start_up == str(folder / "dots" / ".zshrc")
    assert f"fpath=({Path(path).parent} $fpath)\n" in Path(start_up).read_text(encoding="utf-8")


def test_oh_my_zsh_has_a_folder_and_a_setup_of_its_own(script, folder, monkeypatch):
    custom = folder / "custom"
    custom.mkdir()
    monkeypatch.setenv("ZSH_CUSTOM", str(custom))
    (folder / ".zshrc").write_text("source $ZSH/oh-my-zsh.sh\n", encoding="utf-8")
    (path,) = script("zsh", "--install").splitlines()
    assert Path(path).is_relative_to(custom)
    assert (folder / ".zshrc").read_text(encoding="utf-8") == "source $ZSH/oh-my-zsh.sh\n"


# ------------------------------------------------------------------------------ fish


@needs("fish")
def test_fish_completes_files_wherever_one_is_named(script, folder):
    (path,) = script("fish", "--install").splitlines()
    text = "\n".join([f"source {path}", *(f"complete -C'{line}'" for line in DONE)])
    done = subprocess.run(
        ["fish", "-c", text], env=environment(folder), capture_output=True, timeout=PATIENCE, check=False, text=True
    )
    assert done.stderr == ""
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == list(DONE.values())
