"""Journals, inboxes and spools that earlier versions wrote: each is opened and gone on with, or refused with a clear word.

``kept/make.py`` says how they were made. A version that no longer reads one of them adds ``"refused": "words of the
message"`` to what ``expected.json`` says of that file: the first test then asks for these words, the others leave it out.
"""

import gzip
import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from rbim import AsyncClient, Credentials, InvalidRequest
from rbim.bulk import open_job, read_report
from rbim.callbacks import MemorySink, Receiver, Router, SqliteInbox, Worker, delivery_of
from rbim.emulator import EmulatedClock, Emulator

KEPT = Path(__file__).parent / "kept"
EXPECTED = {each.parent.name: json.loads(each.read_text(encoding="utf-8")) for each in sorted(KEPT.glob("*/expected.json"))}
CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")
PATIENCE = 5  # seconds of real time


def files(kind=None, state=None):
    """Return the versions and names of the files of a kind; where one is told, without those that are refused by now."""
    return pytest.mark.parametrize(
        ("version", "name"),
        [
            pytest.param(version, name, id=f"{version}-{name}")
            for version, expected in EXPECTED.items()
            for name, told in expected.items()
            if kind is None or (told["kind"] == kind and state in {None, told.get("state")} and "refused" not in told)
        ],
    )


class File:
    """A copy of a kept file, with the log beside it that a killed process has left, and what is expected of it."""

    def __init__(self, version, name, folder):
        self.told = EXPECTED[version][name]
        self.path = folder / name
        for suffix in ("", "-wal"):
            packed = KEPT / version / f"{name}{suffix}.gz"
            if packed.exists():
                self.path.with_name(f"{name}{suffix}").write_bytes(gzip.decompress(packed.read_bytes()))
        later = datetime.fromisoformat(self.told["until"]) + timedelta(minutes=1)  # leases have run out, retries are due
        self.clock = EmulatedClock(later, auto=self.told["kind"] == "journal")  # time does not wait for an inbox's threads

    def rows(self, statement):
        with closing(sqlite3.connect(self.path)) as file:
            return file.execute(statement).fetchall()

    def fated(self, *fates):
        """Return the rows of a job's input that had these fates when its process ended."""
        return {(group, account) for group, account, fate in self.told["fates"] if fate in fates}


@pytest.fixture
def kept(version, name, tmp_path):
    return File(version, name, tmp_path)


class Nobody:
    """A sender for what sends nothing."""

    async def send(self, operation, /):
        raise AssertionError(operation)


async def open_and_close(kind, path):
    """Open a file as its users do."""
    if kind == "journal":
        open_job(Nobody(), path)
    elif kind == "inbox":
        async with SqliteInbox(path):
            pass
    else:
        async with Receiver(credentials=CREDENTIALS, sink=MemorySink(), spool=path):
            pass


async def refused(kind, path, match):
    with pytest.raises(InvalidRequest, match=match) as caught:
        await open_and_close(kind, path)
    assert str(path) in str(caught.value)


@files()
async def test_a_kept_file_opens_or_is_refused_with_a_clear_word(kept):
    if "refused" in kept.told:
        await refused(kept.told["kind"], kept.path, kept.told["refused"])
    else:
        await open_and_close(kept.told["kind"], kept.path)


# ------------------------------------------------------------------------------------------- jobs


@files("journal")
def test_the_report_of_a_kept_journal_counts_every_row_as_its_sender_did(kept):
    report = read_report(kept.path)
    assert {name: getattr(report.accounts, name) for name in kept.told["accounts"]} == kept.told["accounts"]
    assert report.adds_up
    assert (report.operation, report.state, [run.why for run in report.runs]) == (
        kept.told["operation"],
        kept.told["state"],
        kept.told["runs"],
    )


async def go_on(kept, begin):
    """Go on with a job where the platform is as it was; return the report, how often each row was sent, and the platform."""
    emulator = Emulator(credentials=CREDENTIALS, clock=kept.clock)
    emulator.load(kept.told["platform"])
    client = AsyncClient(base_url="http://emulator", credentials=CREDENTIALS, transport=emulator, clock=kept.clock)
    async with client:
        with anyio.fail_after(PATIENCE):
            report = await begin(open_job(client, kept.path))
    sent = Counter()
    for request in emulator.requests:
        operation = request.operation
        assert operation.spec.name == kept.told["operation"]
        sent.update((operation.group_id, each) for each in getattr(operation, "members", None) or [operation.member])
    assert report.complete
    assert report.adds_up
    assert report.accounts.total == kept.told["accounts"]["total"]
    assert report.accounts.not_sent == 0
    return report.accounts, sent, emulator


@files("journal", "incomplete")
async def test_an_interrupted_job_goes_on_to_its_end_and_sends_each_row_that_may_not_have_arrived_once(kept):
    counts, sent, emulator = await go_on(kept, lambda job: job.resume("resend"))
    assert sent == dict.fromkeys(kept.fated("not_sent", "unknown"), 1)
    refused = kept.told["accounts"]["refused"]
    assert (counts.done, counts.refused, counts.unknown) == (len(kept.told["fates"]) - refused, refused, 0)
    members = {(name, account) for name, group in emulator.state.groups.items() for account in group.members}
    assert set(kept.fated("done", "not_sent", "unknown")) <= members


@files("journal", "incomplete")
async def test_an_interrupted_job_that_reports_what_was_open_does_not_send_it_again(kept):
    counts, sent, _ = await go_on(kept, lambda job: job.resume("report"))
    left_open = {tuple(pair) for pair in kept.told["open"]}
    assert sent == dict.fromkeys(kept.fated("not_sent", "unknown") - left_open, 1)
    assert counts.unknown == len(left_open)


@files("journal", "complete")
async def test_a_finished_job_sends_again_what_has_failed_or_is_unknown_and_nothing_else(kept):
    counts, sent, _ = await go_on(kept, lambda job: job.retry())
    assert sent == dict.fromkeys(kept.fated("failed", "unknown"), 1)
    told = kept.told["accounts"]
    assert (counts.done, counts.failed, counts.unknown) == (told["done"] + told["unknown"], told["failed"], 0)


# --------------------------------------------------------------------------------- message copies


async def handled(inbox, clock):
    """Have a worker handle what waits; return, in that order, the group, the message and the attempt of each event."""
    seen, router = [], Router()

    @router.fallback
    async def anything(event, handling):
        seen.append((event.to, event.msg_id, handling.attempt))

    worker = Worker(inbox, router, clock=clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        with anyio.fail_after(PATIENCE):
            while (await inbox.counts()).waiting:
                await anyio.sleep(0.01)
        worker.stop()
    return seen


def by_group(pairs):
    found = defaultdict(list)
    for group, msg_id in pairs:
        found[group].append(msg_id)
    return found


@files("inbox")
async def test_a_kept_inbox_gives_out_what_waits_in_order_and_its_dead_letters_when_they_are_replayed(kept):
    told, dead = kept.told, kept.told["dead"]
    async with SqliteInbox(kept.path, clock=kept.clock) as inbox:
        counts = await inbox.counts()
        assert {name: getattr(counts, name) for name in told["counts"]} == told["counts"]
        seen = await handled(inbox, kept.clock)
        assert by_group((group, msg_id) for group, msg_id, _ in seen) == told["order"]
        assert {msg_id: attempt for _, msg_id, attempt in seen} == told["attempts"]
        letters = await inbox.dead_letters()
        assert {json.loads(letter.body)["msgId"]: letter.error for letter in letters} == dead
        assert await inbox.replay(dead_only=True) == len(dead)
        assert [msg_id for _, msg_id, _ in await handled(inbox, kept.clock)] == list(dead)
        assert len(await inbox.quarantined()) == told["counts"]["quarantined"]


@files("inbox")
async def test_what_a_kept_inbox_has_taken_is_known_when_it_comes_again(kept):
    bodies = kept.rows("SELECT app_id, body FROM event")
    assert len(bodies) == sum(kept.told["counts"].values())
    async with SqliteInbox(kept.path, clock=kept.clock) as inbox:
        for app_id, body in bodies:
            assert not await inbox.accept(delivery_of(body, app_id=app_id, received=kept.clock.now()))


@files("spool")
async def test_a_kept_spool_is_handed_to_the_sink_in_order(kept, tmp_path):
    count = sum(map(len, kept.told["order"].values()))
    sink = SqliteInbox(tmp_path / "events.db", clock=kept.clock)
    async with Receiver(credentials=CREDENTIALS, sink=sink, spool=kept.path, clock=kept.clock):
        with anyio.fail_after(PATIENCE):
            while (await sink.counts()).waiting < count or kept.rows("SELECT 1 FROM event WHERE state = 0"):
                await anyio.sleep(0.01)
    async with sink:
        seen = await handled(sink, kept.clock)
    assert by_group((group, msg_id) for group, msg_id, _ in seen) == kept.told["order"]


# ------------------------------------------------------------------------------------ what is not ours

KINDS = pytest.mark.parametrize("kind", ["journal", "inbox", "spool"])


@files()
async def test_a_file_of_a_newer_schema_is_refused_by_name(kept):
    with closing(sqlite3.connect(kept.path)) as file:
        file.execute("PRAGMA user_version = 99")
    before = kept.path.read_bytes()
    await refused(kept.told["kind"], kept.path, "its schema has version 99, and this rbim knows . at most")
    if kept.told["kind"] == "journal":
        with pytest.raises(InvalidRequest, match=r"its schema has version 99, .*: update rbim") as caught:
            read_report(kept.path)
        assert str(kept.path) in str(caught.value)
    assert kept.path.read_bytes() == before


@KINDS
async def test_a_database_of_another_application_is_refused_by_name(kind, tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE event (id INTEGER PRIMARY KEY)")
    before = path.read_bytes()
    await refused(kind, path, "it is a database of another application")
    assert path.read_bytes() == before


@KINDS
async def test_a_file_that_is_no_database_is_refused_by_name(kind, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("group,account\n" * 100, encoding="utf-8")
    before = path.read_bytes()
    await refused(kind, path, "file is not a database")
    assert path.read_bytes() == before
