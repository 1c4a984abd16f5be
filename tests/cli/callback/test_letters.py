"""``rbim callback letters`` as people use it: beside a receiver, with wrong input and hostile contents."""

import base64
import io
import json
import re
import sqlite3
import sys
import unicodedata
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import orjson
import pytest

from helpers.callback_process import APP, COMMAND, TOKEN, counts, event, serving
from helpers.deliveries import delivery
from helpers.processes import ran
from rbim.callbacks import MemorySink
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import INBOX, SqliteInbox
from rbim.callbacks.inbox.store import InboxStore
from rbim.callbacks.receiver.spool import Spool
from rbim.cli import Exit, run
from rbim.emulator.clock import EmulatedClock
from rbim.storage.sqlite import Database

EVIL = "\x1b]0;title\x07\x9b31m\u202etxt.exe\u2066x\u2069\u2028y\u200b\ufeff\x00[link=file:///x]x[/link]\udc9b"
FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
ERROR = 'Traceback (most recent call last):\n  File "app.py", line 7, in f\n    1 / 0\nValueError: 群组不存在 %s\nmore\n'
EPOCH = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def cli(capsys):
    """Run a command in this process; its messages are no traceback, and nothing that it writes has a token in it."""

    def call(*tokens):
        code = run(["callback", *map(str, tokens)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert TOKEN not in out + err
        return code, out, err

    return call


def body_of(number, **fields):
    return json.loads(event(msgId=f"m{number}", to=f"g{number}")) | fields


def fill(path, errors, bodies=(), quarantined=(), *, at=EPOCH):
    """Make each error a dead letter, one second after the other, and put the others into quarantine."""

    async def filled():
        clock = EmulatedClock(start=at)
        async with SqliteInbox(path, clock=clock) as inbox, inbox.backlog() as backlog:
            for number, error in enumerate(errors, 1):
                clock.elapsed += 1
                body = bodies[number - 1] if number <= len(bodies) else json.dumps(body_of(number)).encode()
                await inbox.accept(delivery_of(body, app_id=APP, received=clock.now()))
                (claim,) = await backlog.claim(1)
                await backlog.dead_letter(claim, error=error, more=0)
            for body in quarantined:
                clock.elapsed += 1
                await inbox.accept(delivery_of(body, app_id=APP, received=clock.now()))

    anyio.run(filled)


@pytest.fixture
def inbox(tmp_path):
    """An inbox with three dead letters (1 to 3), and two events in quarantine (4: unreadable, 5: of another application)."""
    bodies = [json.dumps(body_of(1, body="你好")).encode(), json.dumps(body_of(2, msgType="TEAM_KICK")).encode()]
    foreign = json.dumps(body_of(5, fromAccount="other#1001")).encode()
    fill(tmp_path / "events.db", [ERROR % each for each in "abc"], bodies, [b"\xff no JSON", foreign])
    return tmp_path / "events.db"


def rows(path, statement):
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute(statement).fetchall()


def states(path):
    return dict(rows(path, "SELECT number, state FROM event"))


BEFORE = {1: 2, 2: 2, 3: 2, 4: 3, 5: 3}


def lines(out):
    """Return the cells of each line of a table."""
    return [re.split(r" {2,}", line.strip()) for line in out.splitlines()[2:]]


# ------------------------------------------------------------------------------------------------------------------- list


def test_a_list_has_one_line_for_each(inbox, cli, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    code, out, err = cli("letters", "list", inbox)
    assert (code, err) == (Exit.DONE, "")
    head, rule, *_ = out.splitlines()
    assert head.split() == ["number", "received", "attempts", "type", "conversation", "error"]
    assert set(rule) == {"─"}
    received = [(EPOCH + timedelta(seconds=n)).astimezone().isoformat(" ", "seconds") for n in (1, 2, 3)]
    assert lines(out) == [
        ["1", received[0], "1", "TEXT", "team/g1", "ValueError: 群组不存在 a"],
        ["2", received[1], "1", "TEAM_KICK", "team/g2", "ValueError: 群组不存在 b"],
        ["3", received[2], "1", "TEXT", "team/g3", "ValueError: 群组不存在 c"],
    ]
    code, out, err = cli("letters", "list", inbox, "--quarantine")
    assert (code, err) == (Exit.DONE, "")
    assert "attempts" not in out
    four, five = lines(out)
    assert (four[0], four[2:4]) == ("4", ["-", "-"])
    assert (five[0], five[2:4]) == ("5", ["TEXT", "team/g5"])
    assert "other" in five[4]


def test_a_list_of_a_choice(inbox, cli):
    """Also how many there are more, and the same in JSON."""
    more = (["--limit", "2"], ["--limit", "1"])
    for flags, numbers in [
        ([], [1, 2, 3]),
        (["--kind", "team-kick"], [2]),
        (["--kind", "Message"], [1, 3]),
        (["--since", "2026-01-02T11:04:07+08:00"], [2, 3]),
        (["--since", "2026-01-02T11:04:08.5+08:00"], []),
        (["--since", "9999999d"], [1, 2, 3]),
        (["--conversation", "team/g2"], [2]),
        (["--conversation", f"{APP}/team/g3"], [3]),
        (["--conversation", "g2"], []),
        (["--limit", "2"], [1, 2]),
        (["--limit", "2", "--after", "2"], [3]),
        (["--after", str(2**80)], []),
        (["--limit", str(2**80)], [1, 2, 3]),
        (["--kind", "TEXT", "--limit", "1"], [1]),
    ]:
        code, out, err = cli("letters", "list", inbox, *flags)
        assert (code, flags) == (Exit.DONE, flags)
        if numbers:
            assert ([int(line[0]) for line in lines(out)], flags) == (numbers, flags)
        else:
            assert (out, flags) == ("no dead letters\n", flags)
        assert err == (f"rbim: there are more: add --after {numbers[-1]} for the next ones\n" if flags[-2:] in more else "")
        code, out, _ = cli("letters", "list", inbox, *flags, "--json")
        assert ([orjson.loads(line)["number"] for line in out.splitlines()], flags) == (numbers, flags)


def test_json_has_everything_but_the_body(inbox, cli):
    _, out, _ = cli("letters", "list", inbox, "--json")
    first = orjson.loads(out.splitlines()[0])
    assert first == {
        "number": 1,
        "received": "2026-01-02T03:04:06+00:00",
        "msg_type": "TEXT",
        "conversation": f"{APP}/team/g1",
        "app_id": APP,
        "key": rows(inbox, "SELECT key FROM event WHERE number = 1")[0][0],
        "attempts": 1,
        "state": "dead",
        "error": ERROR % "a",
    }
    assert "群组不存在" in out
    _, out, _ = cli("letters", "list", inbox, "--json", "--quarantine")
    assert [orjson.loads(line)["state"] for line in out.splitlines()] == ["quarantined", "quarantined"]


# ------------------------------------------------------------------------------------------------------------------- show


def test_one_is_shown_whole(inbox, cli):
    code, out, err = cli("letters", "show", inbox, 1)
    assert (code, err) == (Exit.DONE, "")
    received = (EPOCH + timedelta(seconds=1)).astimezone().isoformat(" ", "seconds")
    key = rows(inbox, "SELECT key FROM event WHERE number = 1")[0][0]
    head, error, body = out.split("\n\n")
    assert [line.split(maxsplit=1) for line in head.splitlines()] == [
        ["number", "1"],
        ["type", "TEXT"],
        ["conversation", "team/g1"],
        ["application", APP],
        ["key", key],
        ["received", received],
        ["attempts", "1"],
    ]
    assert error == "error:\n" + (ERROR % "a").rstrip()
    assert body.startswith("body:\n{\n  ")
    assert '"body": "你好"' in body
    assert orjson.loads(body.removeprefix("body:\n")) == body_of(1, body="你好")
    code, out, _ = cli("letters", "show", inbox, 1, "--json")
    told = orjson.loads(out)
    assert told["document"] == body_of(1, body="你好")
    assert json.loads(base64.b64decode(told["body_base64"])) == told["document"]
    assert (told["error"], told["number"]) == (ERROR % "a", 1)


def test_a_body_is_written_as_it_came(inbox, capsysbinary):
    assert run(["callback", "letters", "show", str(inbox), "4", "--body"]) == Exit.DONE
    assert capsysbinary.readouterr() == (b"\xff no JSON", b"")


# ------------------------------------------------------------------------------------------------------- requeue, discard


def test_all_are_requeued_in_pages(tmp_path, cli, monkeypatch):
    monkeypatch.setattr("rbim.cli.callback.letters.PAGE", 2)
    fill(tmp_path / "events.db", ["E"] * 5, [json.dumps(body_of(1, msgType="TEAM_KICK")).encode()])
    inbox = tmp_path / "events.db"
    assert cli("letters", "requeue", inbox, "--all", "--kind", "team-kick")[1] == "1 dead letter will be handled again\n"
    assert cli("letters", "requeue", inbox, "--all")[1] == "4 dead letters will be handled again\n"
    assert cli("letters", "requeue", inbox, "--all")[1] == "0 dead letters will be handled again\n"
    assert set(states(inbox).values()) == {0}


def test_a_list_of_the_quarantine_says_what_the_spool_keeps(inbox, cli):
    spool = inbox.with_name(f"{inbox.name}-spool")

    async def put():
        async with Spool(spool, MemorySink(), clock=EmulatedClock(), budget=1.0) as file:
            await file.put(delivery_of(event(), app_id=APP, received=EPOCH))()

    anyio.run(put)
    assert cli("letters", "list", inbox, "--quarantine")[2] == ""  # it waits only
    with closing(sqlite3.connect(spool)) as file, file:
        file.execute("UPDATE delivery SET refused = 'too long'")
    code, _, err = cli("letters", "list", inbox, "--quarantine")
    assert (code, err) == (Exit.DONE, f"rbim: {spool} keeps 1 more, which the inbox refuses: too long\n")
    assert cli("letters", "list", inbox)[2] == ""


def test_what_becomes_a_dead_letter_at_once_is_not_left_in_quarantine(inbox, cli, monkeypatch):
    readmit = SqliteInbox.requeue

    async def requeue(archive, numbers):  # beside a worker whose handler fails
        count = await readmit(archive, numbers)
        with closing(sqlite3.connect(inbox)) as beside, beside:
            beside.execute("UPDATE event SET state = 2, error = 'it failed' WHERE number = 4")
        return count

    with closing(sqlite3.connect(inbox)) as plain, plain:  # an update of rbim can read it
        plain.execute("UPDATE event SET body = ? WHERE number = 4", (event(msgId="late"),))
    monkeypatch.setattr(SqliteInbox, "requeue", requeue)
    assert cli("letters", "requeue", inbox, 4, 5, "--json")[:2] == (Exit.REFUSED, '{"events": 1, "left": [5]}\n')


def test_what_cannot_be_read_stays_in_quarantine(inbox, cli):
    code, out, err = cli("letters", "requeue", inbox, "--all", "--quarantine")
    assert (code, out) == (Exit.REFUSED, "0 events in quarantine will be handled again\n")
    assert err.startswith("rbim: 4, 5: cannot be handled, left in quarantine\n4: the body cannot be read")
    code, out, _ = cli("letters", "requeue", inbox, 5, "--json")
    assert (code, out) == (Exit.REFUSED, '{"events": 0, "left": [5]}\n')
    assert states(inbox) == BEFORE
    with closing(sqlite3.connect(inbox)) as plain, plain:  # an update of rbim can read it
        plain.execute("UPDATE event SET body = ? WHERE number = 4", (event(msgId="late"),))
    code, out, err = cli("letters", "requeue", inbox, 1, 4, 5)
    assert (code, out) == (Exit.REFUSED, "2 events will be handled again\n")
    assert "rbim: 5: cannot be handled" in err
    assert states(inbox) == BEFORE | {1: 0, 4: 0}


def test_a_wrong_number_changes_nothing(inbox, cli):
    wrong = []
    for numbers, said in [
        ([99, 1, 7], "no dead letter, and no event in quarantine, has the number 99, 7\n"),
        ([2**63], f"has the number {2**63}\n"),
        (range(100, 113), "has the number 100, 101, 102, 103, 104, 105, 106, 107, 108, 109 and 3 more"),
        ([4, 99], "has the number 99\n"),
    ]:
        for command in (["requeue"], ["discard", "--yes"]):
            code, out, err = cli("letters", command[0], inbox, *numbers, *command[1:])
            if (code, out) != (Exit.USAGE, "") or said not in err:
                wrong.append((command, numbers, code, out, err))
    assert wrong == []
    assert states(inbox) == BEFORE


def test_wrong_input(inbox, cli):
    wrong = []
    for tokens, said in [
        ("letters show {} 9", "no dead letter, and no event in quarantine, has the number 9"),
        ("letters show {} 1 --json --body", "--body: give either --body or --json, not both"),
        ("letters requeue {}", "give the numbers of events, or --all"),
        ("letters requeue {} 1 --all", "give numbers or --all, not both"),
        ("letters requeue {} 1 --kind TEXT", "choose among --all, not among numbers"),
        ("letters discard {}", "give the numbers of events, or --all"),
        ("letters requeue {} 4 --quarantine", "choose among --all, not among numbers"),
        ("letters discard {} 1 --before 1d", "--quarantine and --before choose among --all"),
        ("letters discard {} 4 --quarantine", "--quarantine and --before choose among --all"),
        *(
            (f"letters {command} {{}} {number}", ">= 1" if number in {"0", "-7"} else "not a whole number")
            for command in ("show", "requeue", "discard")
            for number in ("-7", "0", "1.5", "0x1", "٣", "1_0", "abc", "9" * 500)
        ),
        ("letters list {} --limit 0", "--limit"),
        ("letters list {} --limit 1.5", "--limit"),
        ("letters list {} --after -1", "--after"),
        ("letters list {} --since soon", "--since: invalid time 'soon': use 7d, 24h, 30m or"),
        ("letters list {} --kind Kick", "--kind: unknown kind 'Kick'"),
        ("letters list {} --conversation \udcff", "conversation: characters that cannot be encoded in UTF-8"),
        ("letters requeue {} --all --conversation \udcff --quarantine", "conversation: characters that cannot be"),
        ("replay --inbox {} --kind A\udcff", "kind: characters that cannot be encoded in UTF-8"),
        ("letters discard {} --all --before 2026-01-01", "--before: invalid time '2026-01-01'"),
        ("letters discard {} --all --before 2026-01-01T00:00:00", "--before: invalid time"),
    ]:
        code, out, err = cli(*(token.replace("{}", str(inbox)) for token in tokens.split(" ")))
        if (code, bool(out)) != (Exit.USAGE, "--json" in tokens) or said not in err or "a bug" in err:
            wrong.append((tokens, code, out, err))
    assert wrong == []
    assert states(inbox) == BEFORE


# ------------------------------------------------------------------------------------------------------- questions, purge


def test_nothing_is_deleted_unasked(tmp_path, cli, monkeypatch):
    quarantine = [b"\xff no JSON", json.dumps(body_of(5, fromAccount="other#1001")).encode()]
    for number, (flags, question, left, said) in enumerate(
        [
            (
                "1 2 4",
                "3 events of {} (TEXT 2, unreadable 1): their content is lost, and one that",
                [3, 5],
                "3 events deleted",
            ),
            ("--all", "3 dead letters of {}: their", [4, 5], "3 dead letters deleted"),
            (
                "--all --before 2026-01-02T11:04:07+08:00",
                "1 dead letter of {} that came before 20",
                [2, 3, 4, 5],
                "1 dead letter deleted",
            ),
            (
                "--all --quarantine --before 1d",
                "2 events in quarantine of {} that came before ",
                [1, 2, 3],
                "2 events in quarantine deleted",
            ),
        ]
    ):
        inbox = tmp_path / f"{number}.db"
        fill(inbox, ["E"] * 3, (), quarantine)
        question = f"permanently delete {question.format(inbox)}"  # noqa: PLW2901
        tokens = ["letters", "discard", inbox, *flags.split()]
        code, out, err = cli(*tokens)
        assert (code, out, states(inbox)) == (Exit.USAGE, "", BEFORE)
        assert err.startswith(f"rbim: nothing was deleted: this would {question}")
        hint = err.splitlines()[1]
        assert (hint.startswith("To skip the confirmation: rbim callback "), hint.endswith(" --yes")) == (True, True)
        with monkeypatch.context() as terminal:
            terminal.setattr("rbim.cli.confirm.at_terminal", lambda: True)
            terminal.setattr(sys, "stdin", io.StringIO("no\ny\n"))
            code, out, err = cli(*tokens)
            assert (code, out, states(inbox)) == (Exit.USAGE, "", BEFORE)
            assert err.startswith(f"This will {question}")
            assert err.endswith("not confirmed: nothing was deleted\n")
            assert cli(*tokens)[:2] == (Exit.DONE, f"{said}\n")
        assert states(inbox) == {each: BEFORE[each] for each in left}


FILL = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
    INSERT INTO event (key, conversation, app_id, class, msg_type, received, state, attempts, finished, error, body)
    SELECT 'k' || i, 'app/team/' || (i % 100), 'app', 'Text', 'TEXT', i, 2, 8, i, 'E', CAST('{}' AS BLOB) FROM n"""


def test_deliveries_are_accepted_between_the_steps_of_a_purge(tmp_path, cli, monkeypatch):
    """Steps are counted, not seconds: each deletes 500 at most, and the file is free after each."""
    inbox = tmp_path / "events.db"
    fill(inbox, [])
    with closing(sqlite3.connect(inbox)) as plain, plain:
        plain.execute(FILL)
    clock = EmulatedClock()
    receiver = Database(inbox, INBOX, clock=lambda: clock.now().timestamp())
    store = InboxStore(receiver, retention=60.0, lease=30.0, dead_retention=None)
    receiver.open()
    commit, deleted, accepted = Database.commit, [], []

    def counted(file, commands, **options):
        before = rows(inbox, "SELECT count(*) FROM event WHERE state = 2")[0][0]
        results = commit(file, commands, **options)
        deleted.append(before - rows(inbox, "SELECT count(*) FROM event WHERE state = 2")[0][0])
        accepted.extend(commit(receiver, [partial(store.accept, delivery(len(accepted)))], hurried=lambda: True))
        return results

    monkeypatch.setattr(Database, "commit", counted)
    try:
        assert cli("letters", "discard", inbox, "--all", "--yes")[:2] == (Exit.DONE, "20,000 dead letters deleted\n")
    finally:
        receiver.close()
    assert max(deleted) == 500
    assert sum(deleted) == 20_000
    assert accepted == [True] * len(deleted)
    assert states(inbox) == dict.fromkeys(range(20_001, 20_001 + len(accepted)), 0)


# --------------------------------------------------------------------------------------------------- streams and contents


@pytest.fixture
def hostile(tmp_path):
    """Two dead letters and one event in quarantine, in whose every text is what would control a terminal."""
    document = body_of(1, to=f"g{EVIL}", msgType=f"T{EVIL}", body=EVIL) | {EVIL: EVIL}
    body = json.dumps(document).encode()
    fill(
        tmp_path / "events.db",
        [f"Traceback (most recent call last):\n  {EVIL}\nE{EVIL}: {EVIL}\n"],
        [body],
        [EVIL.encode("utf-8", "replace")],
    )
    return tmp_path / "events.db", document


def checked(text):
    found = [character for character in text.replace("\n", "") if unicodedata.category(character) in FORBIDDEN]
    assert not found, ascii(found)


def test_hostile_contents_never_control_the_terminal(hostile, cli):
    inbox, document = hostile
    for tokens in (["list", inbox], ["show", inbox, 1], ["list", inbox, "--quarantine"], ["show", inbox, 2]):
        for flags in ([], ["--json"]):
            code, out, err = cli("letters", *tokens, *flags)
            assert (code, err) == (Exit.DONE, "")
            checked(out)
            unquoted = "--quarantine" in tokens or 2 in tokens  # its error quotes nothing
            assert ("[link=file:///x]x[/link]" in out) or unquoted
    told = json.loads(cli("letters", "show", inbox, 1, "--json")[1])
    document = json.loads(json.dumps(document).replace("\\udc9b", "\ufffd"))  # as handlers see it
    assert told["document"] == document
    shown = cli("letters", "show", inbox, 1)[1]
    assert json.loads(shown[shown.index("\n{") :]) == document
    for tokens in (["status", inbox], ["replay", "--inbox", inbox], ["letters", "discard", inbox, 1]):
        _, out, err = cli(*tokens)
        checked(out + err)
        assert "[link=file:///x]x[/link]" in out + err
    assert json.loads(cli("status", inbox, "--json")[1])["dead_kinds"] == {
        document["msgType"].replace("\udc9b", "\\udc9b"): 1
    }


def test_a_deletion_as_json(inbox, cli):
    assert cli("letters", "discard", inbox, 1, "--yes", "--json")[:2] == (Exit.DONE, '{"events": 1}\n')


# As a process, and beside a receiver that runs.


@pytest.fixture
def four_dead(tmp_path):
    async def fill():
        clock = EmulatedClock(start=datetime.now(UTC) - timedelta(hours=1))
        async with SqliteInbox(tmp_path / "events.db", clock=clock) as opened, opened.backlog() as backlog:
            for number in range(1, 5):
                body = event(msgId=f"m{number}", to=f"g{number}")
                await opened.accept(delivery_of(body, app_id=APP, received=clock.now()))
                (claim,) = await backlog.claim(1)
                await backlog.dead_letter(claim, error="E", more=0)

    anyio.run(fill)
    return tmp_path / "events.db"


@pytest.mark.ci
def test_requeued_ones_are_handled_at_once_by_a_receiver_that_runs(four_dead, cli):
    with serving(four_dead, "--print") as receiver:
        assert receiver.post(event(msgId="new"))[0] == 200
        assert receiver.line()["msgId"] == "new"
        assert cli("letters", "requeue", four_dead, 3, 1, 3) == (Exit.DONE, "2 events will be handled again\n", "")
        assert {receiver.line()["msgId"], receiver.line()["msgId"]} == {"m1", "m3"}
        assert cli("letters", "requeue", four_dead, "--all", "--conversation", "team/g4")[0] == Exit.DONE
        assert receiver.line()["msgId"] == "m4"
        assert cli("letters", "discard", four_dead, 2, "--yes") == (Exit.DONE, "1 event deleted\n", "")
        assert receiver.stop()[0] == 0
    assert (counts(four_dead).done, counts(four_dead).dead) == (4, 0)


@pytest.mark.ci
def test_without_a_terminal_a_process_deletes_nothing(four_dead):
    done = ran(*COMMAND, "letters", "discard", four_dead, "1", input="y\n")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "there is no terminal to confirm it" in done.stderr
    assert counts(four_dead).dead == 4
