"""Wrong inputs that people make at the command line, and the message of each, kept as a page that a reader can judge.

``PYTHONPATH=tests python tests/cli/test_wrong_inputs.py`` writes the page down again.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import zipfile
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

from helpers.serving import served
from helpers.sockets import free_port
from rbim.cli import Exit, run
from rbim.cli.exit_codes import JobExit
from rbim.credentials import Credentials
from rbim.emulator import Emulator

SNAPSHOT = Path(__file__).parent / "snapshots" / "wrong_inputs.txt"
CHINA = timezone(timedelta(hours=8))  # the platform's day counts
RULE = "-" * 100
HOW = "PYTHONPATH=tests python tests/cli/test_wrong_inputs.py writes the page again"

CASES = [
    # commands and flags
    ("a typo of a group of commands", "rbim gruops detail g1"),
    ("a typo of a command", "rbim groups creat --name News --type vip"),
    ("a page of the help that there is not", "rbim help eror"),
    ("a section of a page that there is not", "rbim help errors#notfond"),
    ("the help of a command", "rbim help invite"),
    ("version as a command", "rbim version"),
    ("a typo of a flag", "rbim groups detail g1 --jsn"),
    ("the singular of a required flag", "rbim groups invite g1 --member 1001"),
    ("accounts without their flag", "rbim groups invite g1 1001 1002"),
    ("accounts joined by a comma", "rbim groups invite g1 --members 1001,1002"),
    ("the name of a group without its flag", "rbim groups create News --type vip"),
    ("a missing identifier", "rbim groups detail"),
    ("an empty identifier", 'rbim groups detail ""'),
    ("two identifiers", "rbim groups leave g1 g2"),
    ("a flag without its value", "rbim groups detail g1 --profile"),
    ("a flag given twice", "rbim groups detail g1 --profile a --profile b"),
    ("a choice that there is not", "rbim groups create --name News --type huge"),
    ("a date in another order", "rbim calls create-task task.toml --start-date 31.01.2099"),
    ("a date in the past", "rbim calls create-task task.toml --start-date 2020-01-01"),
    ("a wrong key in a file of fields", "rbim calls create-task typo.toml"),
    ("a rate without its unit", "rbim invite members.csv --rate 50"),
    ("a rate of nothing", "rbim invite members.csv --rate 0/s"),
    ("a word that a command does not take", "rbim emulator start"),
    ("accounts without a header", "rbim invite two.csv"),
    ("no accounts in a request", "rbim invite members.csv --chunk 0"),
    ("a removal in a script, without --yes", "rbim remove members.csv"),
    # files
    ("a file that is not there", "rbim invite members.scv"),
    ("a folder in a file's place", "rbim invite folder"),
    ("a file from a Chinese spreadsheet: GBK, with Chinese headers", "rbim invite gbk.csv"),
    ("UTF-16 without its mark", "rbim invite utf16.csv"),
    ("a workbook that is damaged", "rbim invite members.xlsx"),
    ("HTML named .xls", "rbim invite page.xls --group g1"),
    ("an empty file", "rbim invite empty.csv"),
    ("a header without rows", "rbim invite header.csv"),
    ("two columns of one name", "rbim invite twice.csv"),
    ("a column with another name", "rbim invite number.csv"),
    ("no column of groups", "rbim invite accounts.csv"),
    ("a list of accounts without their group", "rbim invite accounts.txt"),
    ("numbers that a spreadsheet has rounded", "rbim invite rounded.csv --dry-run"),
    ("the result over the input", "rbim invite members.csv --not-done members.csv"),
    ("no place for the journal", "rbim invite locked/members.csv"),
    ("another job in the same journal", "rbim invite members.csv --journal other.journal"),
    ("the input in the journal's place", "rbim job resume done.csv"),
    ("a folder in a journal's place", "rbim job status folder"),
    ("a folder as an inbox", "rbim callback serve --inbox folder --port 0"),
    ("a table in the place of a captured delivery", "rbim callback explain members.csv"),
    # configuration
    ("nothing is configured", "RBIM_BASE_URL= RBIM_APP_ID= RBIM_APP_TOKEN= rbim groups detail g1"),
    ("no token", "RBIM_APP_TOKEN= rbim groups detail g1"),
    ("no application, for a captured delivery", "RBIM_APP_ID= rbim callback explain members.csv"),
    ("no application, for a receiver", "RBIM_BASE_URL= RBIM_APP_ID= rbim callback serve --inbox new.db"),
    ("a file with the token that is not there", "RBIM_APP_TOKEN= RBIM_APP_TOKEN_FILE=app.token rbim groups detail g1"),
    ("an address without its scheme", "rbim --base-url 127.0.0.1:8883 groups detail g1"),
    ("an address with the version", "rbim --base-url https://im.example/2013-12-26 groups detail g1"),
    ("a profile that there is not", "rbim --profile production groups detail g1"),
    ("a configuration file that is not there", "rbim --config rbim.tmol groups detail g1"),
    ("a time that is no number, in a variable", "RBIM_TIMEOUT=soon rbim groups detail g1"),
    # platform, servers
    ("no receiver there", "rbim callback send hello --url http://127.0.0.1:CLOSED/"),
    ("no platform there", "rbim --base-url http://127.0.0.1:CLOSED groups detail g1"),
    ("https:// for a platform that speaks http://", "rbim --base-url https://127.0.0.1:PORT groups detail g1"),
    ("a wrong token", "RBIM_APP_TOKEN=of-the-account rbim groups detail g1"),
    ("a group that there is not", "rbim groups detail g80000000000009"),
    ("a port in use", "rbim emulator --port PORT"),
    ("a test delivery of an unknown type", "rbim callback send hello --type LAUGH"),
    ("a time without its zone", "rbim callback send --to 1 --sender 2 --timestamp 2026-01-31T09:00:00"),
]

TASK = """\
bot_id = 7
task_name = "Renewals"
start_date = 2099-01-31
end_date = 2099-02-28
max_concurrent = 2
min_concurrent = 1
caller = "1000"
"""


def make_files():
    """Write the files that the cases name into the working directory."""
    texts = {
        "members.csv": "group,account\ng1,1001\n",
        "empty.csv": "",
        "header.csv": "group,account\n",
        "two.csv": "g80000049837291,1001\ng80000049837291,1002\n",
        "twice.csv": "group,account,account\ng1,1001,1002\n",
        "number.csv": "group,number\ng1,13800138000\n",
        "accounts.csv": "account\n1001\n",
        "accounts.txt": "1001\n1002\n",
        "rounded.csv": "group,account\ng1,1.38E+10\n",
        "task.toml": TASK,
        "typo.toml": TASK.replace("caller", "callr"),
        "done.csv": "group,account\ng1,1001\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("gbk.csv").write_bytes("群组,账号,姓名\ng1,1001,张三\n".encode("gbk"))
    Path("utf16.csv").write_text("group,account\ng1,1001\n", encoding="utf-16-le")
    Path("folder").mkdir()
    Path("locked", "members.csv.invite.journal").mkdir(parents=True)
    Path("locked", "members.csv").write_text("group,account\ng1,1001\n", encoding="utf-8")
    with zipfile.ZipFile("members.xlsx", "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
        book.writestr("xl/workbook.xml", "<workbook/>")
    Path("page.xls").write_text("<html><table><tr><td>1001</td></tr></table></html>", encoding="utf-8")


@contextmanager
def world():
    """Give a function that runs a line, and returns its exit code with what it printed, as it is shown on the page."""
    before = Path.cwd()
    emulator = Emulator(credentials=Credentials(app_id="demo", app_token="demo"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=os.environ.get("TMPDIR")))).resolve()
        url = stack.enter_context(served(emulator.asgi))
        port, closed = url.rpartition(":")[2], str(free_port())
        own = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
        variables = {"RBIM_BASE_URL": url, "RBIM_APP_ID": "demo", "RBIM_APP_TOKEN": "demo", "no_proxy": "*"}
        variables["XDG_CONFIG_HOME"] = str(folder / "home")
        stack.enter_context(patch.dict(os.environ, own | variables, clear=True))
        stack.callback(os.chdir, before)
        os.chdir(folder)
        make_files()

        def told(line):
            words = shlex.split(line.replace("PORT", port).replace("CLOSED", closed))
            at = words.index("rbim")
            given = dict(word.split("=", 1) for word in words[:at])
            out = io.StringIO()
            with patch.dict(os.environ, given), redirect_stdout(out), redirect_stderr(out):
                code = run(words[at + 1 :])
            text = out.getvalue().replace(f"{folder}/", "").replace(str(folder), ".").replace(port, "PORT")
            return code, text.replace(closed, "CLOSED").replace(f"{datetime.now(CHINA):%Y-%m-%d}", "TODAY")

        for rows, journal in (("done.csv", None), ("done.csv", "other.journal")):
            words = ["invite", rows, "--quiet", *(["--journal", journal, "--chunk", "7"] if journal else [])]
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                run(words)
        yield told


def page():
    """Return the whole page."""
    parts = []
    with world() as told:
        for title, line in CASES:
            code, text = told(line)
            parts.append(f"# {title}\n$ {line}\n{text}[exit code {int(code)}]\n")
    return f"\n{RULE}\n\n".join(parts)


def sections(text):
    return dict(part.removeprefix("# ").split("\n", 1) for part in text.split(f"\n{RULE}\n\n"))


@pytest.fixture(scope="module")
def shown():
    return sections(page())


@pytest.mark.skipif(sys.platform == "win32", reason="messages of the system, and paths, have other words there")
def test_the_messages_are_those_of_the_page(shown):
    kept = sections(SNAPSHOT.read_text(encoding="utf-8"))
    assert list(shown) == list(kept), HOW
    for title, text in shown.items():
        assert text == kept[title], HOW


def test_each_message_is_short_has_a_next_step_and_the_right_exit_code(shown):
    """One line with the cause, and at least one with what to do; nothing is sent unless the platform must answer."""
    for title, text in shown.items():
        _, *lines, last = [line for line in text.splitlines() if not line.startswith("journal: ")]
        code = int(re.fullmatch(r"\[exit code (\d+)\]", last)[1])
        assert code in {Exit.USAGE, Exit.REFUSED, Exit.NOT_SENT, JobExit.INCOMPLETE}, title
        assert lines, title
        assert max(map(len, lines)) < 300, title
        if "--dry-run" not in text:
            assert lines[0].startswith("rbim: "), title
            assert 2 <= len(lines) + ("install it with" in text) + ("choose another" in text) <= 5, title
        assert "Traceback" not in text, title
        assert "Errno" not in text, title


if __name__ == "__main__":
    SNAPSHOT.write_text(page(), encoding="utf-8", newline="\n")
