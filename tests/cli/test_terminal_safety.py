"""Foreign text never controls a terminal: output is printable, whatever the platform, files and the environment contain."""

import json
import logging
import sys
import unicodedata
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rbim import GroupDetail
from rbim.cli.entry_point import run
from rbim.cli.errors import print_error
from rbim.cli.global_flags import _logging_to_stderr
from rbim.cli.jobs.progress import ProgressDisplay
from rbim.cli.json_output import show_json
from rbim.cli.output import show
from rbim.operations.groups import GroupFound, GroupsFound

UNSAFE = {
    "C0": "\x1b]0;title\x07",
    "DEL": "\x7f",
    "C1": "\x9b31m",
    "bidi override": "\u202etxt.exe",
    "bidi isolate": "\u2066x\u2069",
    "bidi mark": "\u200ex\u200f\u061c",
    "line separators": "\u2028x\u2029",
    "zero width": "\u200bx\u200d\ufeff",
    "tag": "\U000e0041",
    "private use": "\ue000",
    "lone surrogate": "\udc9b",
    "markup": "[link=file:///x]x[/link]",
}
FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters()),
    lambda each: st.lists(each) | st.dictionaries(st.text(st.characters()), each),
    max_leaves=8,
)


def check(text):
    """Check the lines by the categories of Unicode, not by the rule of the code."""
    found = [character for character in text.replace("\n", "") if unicodedata.category(character) in FORBIDDEN]
    if found:
        pytest.fail(ascii((found, text[:300])), pytrace=False)


class Stream:
    """Standard output with an encoding."""

    def __init__(self, encoding):
        self.encoding = encoding
        self.text = ""

    def write(self, text):
        self.text += text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=DOCUMENTS, encoding=st.sampled_from(["utf-8", "ascii", "gb18030"]))
def test_json_is_printable_and_the_same_document(monkeypatch, encoding, document):
    stream = Stream(encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        show_json(document)
    assert json.loads(stream.text) == json.loads(json.dumps(document))  # two lone surrogates become a pair
    assert stream.text.endswith("\n")
    check(stream.text)
    assert stream.text.count("\n") == 1
    if encoding != "utf-8":
        assert stream.text.isascii()


def test_each_unsafe_text_is_escaped_in_json(capsys):
    for text in UNSAFE.values():
        show_json({text: [text], "名": "中文 é 👍"})
        out = capsys.readouterr().out
        assert json.loads(out) == {text: [text], "名": "中文 é 👍"}
        assert "中文 é 👍" in out
        check(out)


def test_answers(capsys):
    """Also the names of unknown fields, which become headings; markup of rich stays text."""
    for text in UNSAFE.values():
        show(GroupDetail(name=text, extra={f"x{text}": text, "more": {text: [text]}}))
        out = capsys.readouterr().out
        check(out)
        assert out.count(text) == 5 or "[" not in text
        show(GroupsFound(groups=(GroupFound(group_id="g1", extra={f"h{text}": text}),)))
        out = capsys.readouterr().out
        check(out)
        assert out.count(text) == 2 or "[" not in text


def test_errors_and_their_hints(capsys):
    for text in UNSAFE.values():
        print_error(f"cannot read {text}", f"To resume: rbim job resume {text}", f"two\nlines {text}")
        err = capsys.readouterr().err
        check(err)
        assert len(err.splitlines()) == 4
        with ProgressDisplay(None, quiet=False) as progress:
            progress.print_line(f"stopping: {text}")
        check(capsys.readouterr().err)


def test_records_of_the_log_and_their_tracebacks(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("rbim"), "propagate", False)  # pytest would send the text to another process
    for text in UNSAFE.values():
        with _logging_to_stderr():
            try:
                int(f"bad {text}")
            except ValueError:
                logging.getLogger("rbim.client").exception("failed: %s", text)
        err = capsys.readouterr().err
        check(err)
        assert "Traceback" in err
        assert "\nValueError: " in err


COMMANDS = {
    "no such command": ["{}"],
    "no such flag": ["invite", "--{}"],
    "value of a flag": ["--transport", "{}", "config", "show"],
    "base URL": ["--base-url", "http://{}", "config", "show"],
    "base URL in JSON": ["--base-url", "http://{}", "config", "show", "--json"],
    "configuration file": ["--config", "{}", "config", "show"],
    "path of the configuration": ["--config", "{}", "config", "path"],
    "profile": ["--profile", "{}", "config", "show"],
    "profile in JSON": ["--profile", "{}", "config", "show", "--json"],
    "field of the dialect": ["dialect", "{}"],
    "journal": ["job", "status", "{}"],
    "journal of a report": ["job", "report", "{}", "--json"],
    "journal to resume": ["job", "resume", "{}"],
    "journal to retry": ["job", "retry", "{}"],
    "status of an inbox": ["callback", "status", "{}"],
    "inbox of dead letters": ["callback", "letters", "show", "{}", "1"],
    "inbox of a quarantine": ["callback", "letters", "discard", "{}", "--all", "--quarantine", "--yes"],
    "number of a dead letter": ["callback", "letters", "requeue", "events.db", "{}"],
    "time of dead letters": ["callback", "letters", "list", "events.db", "--since", "{}"],
    "kind of dead letters": ["callback", "letters", "list", "events.db", "--kind", "{}"],
    "conversation of dead letters": ["callback", "letters", "list", "events.db", "--conversation", "{}"],
    "time of a message": ["callback", "send", "--to", "1", "--sender", "2", "--timestamp", "{}"],
    "input": ["invite", "{}", "--group", "g", "--dry-run"],
    "output": ["job", "report", "j", "--csv", "{}/x"],
    "capture": ["callback", "explain", "{}"],
    "inbox": ["callback", "replay", "{}", "--yes"],
    "URL of a receiver": ["callback", "send", "--url", "{}"],
    "fields": ["groups", "detail", "{}"],
    "debug": ["--debug", "job", "status", "{}"],
}


def test_arguments_and_the_environment(bare_environment, tmp_path, capsys):
    """Values that a shell cannot pass (NUL) are left out; lone surrogates stand for bytes that are no UTF-8."""
    bare_environment.chdir(tmp_path)
    text = "".join(UNSAFE.values()).replace("/", "_")

    def run_all():
        for command in COMMANDS.values():
            with suppress(SystemExit):
                run([word.format(text) for word in command])
            shown = capsys.readouterr()
            check(shown.out)
            check(shown.err)
            assert shown.out or shown.err, command

    run_all()
    for name in ("PROFILE", "APP_ID", "USER_NAME", "TRANSPORT", "API_VERSION"):
        with bare_environment.context() as one:
            one.setenv(f"RBIM_{name}", text)
            for command in ("config show", "groups detail g1"):
                run(command.split())
                shown = capsys.readouterr()
                check(shown.out + shown.err)


@pytest.mark.usefixtures("bare_environment")
def test_rows_of_a_file(tmp_path, capsys):
    """Cells, headings and the name of an input."""
    text = "".join(UNSAFE.values()).replace("/", "_")
    file = tmp_path / f"{text}.csv"
    file.write_text(f"group,account,{text}\ng1,{text},x\n,{text},x\ng1,1\n", encoding="utf-8", errors="surrogateescape")
    for more in ([], ["--json"], ["--account-column", text]):
        run(["invite", str(file), "--dry-run", *more])
    shown = capsys.readouterr()
    check(shown.out)
    check(shown.err)
    assert "dry" not in shown.err
