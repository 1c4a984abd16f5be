"""Makes the files that every later version opens, or refuses with a clear word: ``python tests/kept/make.py``.

They go into a folder named for the version that runs, once: a folder that is there is left alone, for files written by the
code of later days would prove nothing. Everything is made by the public API on emulated time, with invented accounts. What
is killed runs in a process of its own, ``make.py KIND FOLDER``, which ends itself by SIGKILL.

``expected.json`` says what is in each file, and is not what rbim reads in it: it comes from what the scripts below sent and
were answered, which is written down before the kill, and ``check`` compares it with the tables as plain SQL finds them.
"""

import gzip
import io
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import anyio

import rbim
from rbim import ApiError, AsyncClient, Credentials, GroupType, Retry, Role, SetMemberRole, Unanswered
from rbim.bulk import InviteJob, Job, RemoveJob, RowFile
from rbim.callbacks import Receiver, SqliteInbox, delivery_of, sign
from rbim.emulator import EmulatedClock, Emulator

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")
START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
MOMENT = 0.1  # seconds of real time in which what was answered gets into the journal


class Platform:
    """An emulator with two groups, and a client of it. The clock stands still but for a quarter of a second a request."""

    def __init__(self):
        self.clock = EmulatedClock(START)
        self.emulator = Emulator(credentials=CREDENTIALS, clock=self.clock)
        self.client = AsyncClient(
            base_url="http://emulator", credentials=CREDENTIALS, transport=self.emulator, clock=self.clock
        )
        self.groups = []

    async def __aenter__(self):
        await self.client.__aenter__()
        for name in ("北", "南"):
            group = await self.client.groups.create(name=name, type=GroupType.VIP)
            self.groups.append(group.group_id)
        return self

    async def __aexit__(self, *_):
        await self.client.__aexit__(None, None, None)


class Script:
    """Sends as it is told, request by request, and keeps what became of each account as its sender saw it.

    ``answer``: as the platform does. ``refuse``: it did nothing, and says so. ``lose``: it did as asked, and the answer is
    lost. ``hang``: it did, and no answer ever comes; ``vanish``: it did not, and none ever comes. The last step is
    taken again and again. With two requests on their way for ever, ``killed`` is called and the process ends.
    """

    def __init__(self, platform, steps, *, killed=None, stop=None):
        self.platform, self.steps, self.killed, self.stop = platform, list(steps), killed, stop
        self.fates, self.sent, self.hanging = {}, Counter(), 0
        self.open = {}  # accounts whose last request was neither answered nor refused

    async def send(self, operation, /):
        pairs = [(operation.group_id, each) for each in getattr(operation, "members", None) or [operation.member]]
        self.sent.update(pairs)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        await self.platform.clock.advance(0.25)
        if step == "refuse":
            fresh = [pair for pair in pairs if self.fates.get(pair) != "unknown"]  # others may have been done before
            self.fates |= dict.fromkeys(fresh, "failed")
            self._close(pairs)
            raise ApiError(code="900999")
        if step == "vanish":
            await self._hang(pairs)
        try:
            answer = await self.platform.client.send(operation)
        except ApiError:
            self.fates |= dict.fromkeys(pairs, "failed")
            self._close(pairs)
            raise
        if step == "hang":
            await self._hang(pairs)
        if step == "lose":
            self.fates |= dict.fromkeys(pairs, "unknown")
            self.open |= dict.fromkeys(pairs)
            raise Unanswered
        self.fates |= dict.fromkeys(pairs, "done")
        self._close(pairs)
        self.fates |= {(operation.group_id, fail.member): "refused" for fail in getattr(answer, "fails", ())}
        if self.stop is not None and len(self.sent) >= self.stop[0]:
            self.stop[1]()
        return answer

    def _close(self, pairs):
        self.open = dict.fromkeys(pair for pair in self.open if pair not in pairs)

    async def _hang(self, pairs):
        self.fates |= dict.fromkeys(pairs, "unknown")
        self.open |= dict.fromkeys(pairs)
        self.hanging += 1
        if self.killed is not None and self.hanging == 2:
            await anyio.sleep(MOMENT)
            self.killed()
            os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep_forever()

    def told(self, rows, *, operation, state, bad=0, duplicate=0, whys=("done",)):
        """Return what is to be expected of the journal of these rows."""
        counts = Counter(self.fates.get(pair, "not_sent") for pair in rows)
        return {
            "kind": "journal",
            "operation": operation,
            "state": state,
            "runs": list(whys),
            "accounts": {
                "total": len(rows) + bad + duplicate,
                **{name: counts[name] for name in ("done", "refused", "failed", "unknown", "not_sent")},
                "bad": bad,
                "duplicate": duplicate,
            },
            "fates": [[*pair, self.fates.get(pair, "not_sent")] for pair in rows],
            "open": list(self.open),
            "platform": self.platform.emulator.export(),
            "until": self.platform.clock.now().isoformat(),
        }


NO_RETRY = Retry(attempts=1)


async def finished(folder):
    """Make an invitation of two groups and one that does not exist, from CSV, that ran to its end.

    Two accounts have never logged in, one row is bad, one a duplicate; the answer to one request of three accounts was lost.
    """
    async with Platform() as platform:
        platform.emulator.never_logged_in("张三-2", "u05")
        north, south = platform.groups
        rows = [
            *((north, f"张三-{number}") for number in range(1, 8)),
            *((south, f"u{number:02}") for number in range(1, 8)),
        ]
        rows += [("g80009999999999", "nobody-1"), ("g80009999999999", "nobody-2")]
        lines = ["group,account", *map(",".join, rows), f"{south},u01", f"{south},"]
        script = Script(platform, ["answer", "lose", "answer"])
        job = InviteJob(
            script,
            journal=folder / "finished.journal",
            chunk=3,
            concurrency=1,
            adaptive=False,
            declared="欢迎",
            retry=NO_RETRY,
            max_failures=None,
            clock=platform.clock,
        )
        await job.run(RowFile(io.BytesIO("\n".join(lines).encode()), kind="csv"))
        return script.told(rows, operation="InviteJoinGroup", state="complete", bad=1, duplicate=1)


async def interrupted(folder):
    """Make an invitation that is killed in the middle, and say what its sender saw.

    The answers to two requests were lost: one is still to be repeated; the other was, was refused then, and its halves are
    planned. Another one was refused at once, and its halves are on their way when the process ends: one has reached the
    platform, the other has not. Some rows were never sent.
    """
    async with Platform() as platform:
        platform.emulator.never_logged_in("a02")
        north, south = platform.groups
        rows = [
            *((north, f"a{number:02}") for number in range(1, 14)),
            *((south, f"b{number:02}") for number in range(1, 11)),
        ]
        steps = ["answer", "lose", "answer", "refuse", "refuse", "lose", "hang", "vanish"]
        pauses = iter([0.01, 1.0])  # parts of 20 seconds: the first to be repeated is, the second is not before the end

        def killed():
            for pair, fate in script.fates.items():  # all halves of what was refused wait to be sent
                if fate == "failed":
                    script.fates[pair] = "not_sent"
            told = script.told(rows, operation="InviteJoinGroup", state="incomplete", duplicate=1, whys=[None])
            (folder / "interrupted.json").write_text(json.dumps(told), encoding="utf-8")

        script = Script(platform, steps, killed=killed)
        journal = folder / "interrupted.journal"
        options = {"chunk": 4, "concurrency": 2, "adaptive": False, "isolate": 20, "clock": platform.clock}
        options["retry"] = Retry(attempts=5, base=20.0, cap=20.0, random=lambda: next(pauses))
        await InviteJob(script, journal=journal, **options).run([*rows, rows[0]])


async def removed(folder):
    """Make a removal that ran to its end; the group of the last row does not exist."""
    async with Platform() as platform:
        north, south = platform.groups
        rows = [*((north, f"r{number}") for number in range(1, 6)), (south, "r1"), ("g80009999999999", "r1")]
        for group in (north, south):
            await platform.client.groups.invite(
                group_id=group, members=[account for each, account in rows[:6] if each == group]
            )
        script = Script(platform, ["answer"])
        journal = folder / "removed.journal"
        options = {"chunk": 2, "concurrency": 1, "adaptive": False, "max_failures": None, "clock": platform.clock}
        await RemoveJob(script, journal=journal, user_name="admin", **options).run(rows)
        return script.told(rows, operation="DeleteGroupMember", state="complete")


async def stopped(folder):
    """Make a job of one account a request, with an acting account in the rows, that was stopped in good order."""
    async with Platform() as platform:
        north, south = platform.groups
        rows = [(group, f"m{number}") for number in range(1, 5) for group in (north, south)]
        for group in (north, south):
            await platform.client.groups.invite(group_id=group, members=[account for each, account in rows if each == group])
        script = Script(platform, ["answer"])
        options = {"concurrency": 1, "adaptive": False, "clock": platform.clock}
        journal = folder / "stopped.journal"
        job = Job(script, SetMemberRole, journal=journal, options={"role": Role.ADMINISTRATOR}, **options)
        run = job.run([(*row, "admin") for row in rows])
        script.stop = (3, run.stop)
        await run
        return script.told(rows, operation="SetMemberRole", state="incomplete", whys=["stopped"])


def body(msg_id, group, **fields):
    """Return the body of a message copy."""
    document = {"eventType": "1", "convType": "TEAM", "to": group, "fromAccount": f"{CREDENTIALS.app_id}#1001"}
    document |= {"msgType": "TEXT", "body": "你好", "msgId": msg_id, "msgTimestamp": "1772600767000"} | fields
    return json.dumps(document, ensure_ascii=False).encode()


async def inbox(folder):
    """Make an inbox in which each state of an event occurs.

    Done: d1, d2. Dead: dead1, dead2, buried after their last attempts. Retrying: r1, whose handler failed once, before r2.
    Leased: l1, claimed by a worker that was lost, before l2. Waiting: w1 to w3. In quarantine: what is no JSON, and an
    account of another application.
    """
    clock = EmulatedClock(START)
    kept = SqliteInbox(folder / "inbox.db", clock=clock)
    bodies = [
        body("d1", "g1"),
        body("d2", "g1", msgType="PICTURE", attach="https://files.example/1.png"),
        body("dead1", "g2"),
    ]
    bodies += [body("dead2", "g2"), body("r1", "g3"), body("r2", "g3"), body("l1", "g4"), body("l2", "g4")]
    bodies += [body("w1", "g1"), body("w2", "g5", msgType="TEAM_KICK"), body("w3", "g5")]
    strange = [b"no JSON", body("q2", "g6", fromAccount="ffffffffffffffffffffffffffffffff#1001")]

    async def accept(given):
        for each in given:
            await clock.advance(1.0)
            assert await kept.accept(delivery_of(each, app_id=CREDENTIALS.app_id, received=clock.now()))

    async with kept:
        await accept(bodies[:4])
        async with kept.backlog() as backlog:
            first, dead = await backlog.claim(10)
            assert not await backlog.done(await backlog.done([first], more=1), more=1)
            (dead,) = await backlog.dead_letter(dead, error="ValueError: an invented failure", more=1)
            await backlog.dead_letter(dead, error="ValueError: another invented failure", more=0)
            await accept(bodies[4:8])
            retried, _ = await backlog.claim(10)
            await backlog.retry(retried, error="ValueError: not yet", pause=60.0)
            await accept([*bodies[8:], *strange])
    return {
        "kind": "inbox",
        "counts": {"waiting": 7, "done": 2, "dead": 2, "quarantined": 2},
        "order": {"g1": ["w1"], "g3": ["r1", "r2"], "g4": ["l1", "l2"], "g5": ["w2", "w3"]},
        "attempts": {"r1": 2, "r2": 1, "l1": 2, "l2": 1, "w1": 1, "w2": 1, "w3": 1},
        "dead": {"dead1": "ValueError: an invented failure", "dead2": "ValueError: another invented failure"},
        "known": len(bodies),
        "until": clock.now().isoformat(),
    }


class Away:
    """A sink that takes nothing: what the receiver brings fails, what the spool brings waits for ever."""

    durable, retention = True, 3600.0

    def __init__(self):
        self.seen = set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def accept(self, delivery, /):
        if delivery.key in self.seen:
            await anyio.sleep_forever()
        self.seen.add(delivery.key)
        raise ConnectionError


async def spool(folder, name="spool", *, kill=False):
    """Make a spool: five deliveries in two conversations, answered 200, none of which the sink has taken."""
    clock = EmulatedClock(START)
    receiver = Receiver(credentials=CREDENTIALS, sink=Away(), spool=folder / name, clock=clock)
    sent = [("s1", "g1"), ("s2", "g2"), ("s3", "g1"), ("s4", "g1"), ("s5", "g2")]
    async with receiver:
        for msg_id, group in sent:
            await clock.advance(0.5)
            told = body(msg_id, group)
            reply = await receiver.receive(sign(told, credentials=CREDENTIALS, now=clock.now()), told)
            assert reply.status == 200
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
    order = {group: [msg_id for msg_id, each in sent if each == group] for group in ("g1", "g2")}
    return {"kind": "spool", "order": order, "until": clock.now().isoformat()}


def torn(folder, whole):
    """Make the spool of a process that was killed, and cut its log where a machine that lost its power might have.

    The last commit in it is not whole; what was accepted by that, s5, was never answered then.
    """
    assert in_a_process("torn", folder) == -signal.SIGKILL
    log = folder / "torn-wal"
    ends = frames(log.read_bytes())
    log.write_bytes(log.read_bytes()[: ends[-1] - 100])
    return whole


def frames(log):
    """Return where each transaction in a write-ahead log of SQLite's ends: with a frame whose head says so."""
    page = int.from_bytes(log[8:12], "big")
    starts = range(32, len(log) - page - 23, page + 24)
    return [start + 24 + page for start in starts if int.from_bytes(log[start + 4 : start + 8], "big")]


def in_a_process(kind, folder):
    return subprocess.run([sys.executable, __file__, kind, str(folder)], check=False).returncode


STATES = {0: "not_sent", 1: "done", 2: "refused", 3: "failed", 4: "unknown", -1: "unknown"}


def check(folder, expected):
    """Compare what is expected with the tables, by SQL alone, on copies: to open a log beside a file takes it in."""
    for name, told in expected.items():
        copy = sqlite3.connect(":memory:")
        for suffix in ("", "-wal"):
            source = folder / f"{name}{suffix}"
            if source.exists():
                (folder / f"copy{suffix}").write_bytes(source.read_bytes())
        with closing(sqlite3.connect(folder / "copy")) as file:
            file.backup(copy)
        for left in folder.glob("copy*"):
            left.unlink()
        rows = copy.execute
        if told["kind"] == "journal":
            lost = {
                chunk
                for (chunk,) in rows(
                    "SELECT chunk FROM request WHERE outcome IN (0, 5) OR todo = 1 AND (outcome = 4 OR resent)"
                )
            }
            apart = {(chunk, place): state for chunk, place, state, _ in rows("SELECT * FROM exception")}
            found = rows(
                """SELECT chunk.id, name, accounts, state FROM chunk JOIN content ON content.id = content
                JOIN sender_group ON sender_group.id = chunk.sender_group
                JOIN target_group ON target_group.id = target_group"""
            ).fetchall()
            fates = [
                [group, account, "unknown" if chunk in lost and state == 0 else STATES[apart.get((chunk, place), state)]]
                for chunk, group, accounts, state in found
                for place, account in enumerate(json.loads(accounts))
            ]
            assert sorted(fates) == sorted(told["fates"]), name
        elif told["kind"] == "inbox":
            counts = dict(rows("SELECT state, count(*) FROM event GROUP BY state").fetchall())
            assert list(told["counts"].values()) == [counts.get(state, 0) for state in range(4)]
        else:
            found = [json.loads(each)["msgId"] for (each,) in rows("SELECT body FROM event WHERE state = 0 ORDER BY number")]
            assert sorted(found) == sorted(chain.from_iterable(told["order"].values())), (name, found)
        copy.close()


def main():
    folder = Path(__file__).parent / rbim.__version__
    folder.mkdir()  # those of a version are made once
    expected = {f"{make.__name__}.journal": anyio.run(make, folder) for make in (finished, removed, stopped)}
    assert in_a_process("interrupted", folder) == -signal.SIGKILL
    told = folder / "interrupted.json"
    expected["interrupted.journal"] = json.loads(told.read_text(encoding="utf-8"))
    told.unlink()
    expected["inbox.db"] = anyio.run(inbox, folder)
    expected["spool"] = anyio.run(spool, folder)
    order = {group: [each for each in ids if each != "s5"] for group, ids in expected["spool"]["order"].items()}
    expected["torn"] = torn(folder, expected["spool"] | {"order": order})
    for left in [*folder.glob("*-lock*"), *folder.glob("*-shm")]:
        left.unlink()
    check(folder, expected)
    for made in list(folder.iterdir()):  # mostly empty pages
        made.with_name(f"{made.name}.gz").write_bytes(gzip.compress(made.read_bytes(), mtime=0))
        made.unlink()
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (folder / "expected.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    logging.disable()  # what fails here is meant to
    if sys.argv[1:2] == ["interrupted"]:
        anyio.run(interrupted, Path(sys.argv[2]))
    elif sys.argv[1:2] == ["torn"]:
        anyio.run(lambda: spool(Path(sys.argv[2]), "torn", kill=True))
    else:
        main()
