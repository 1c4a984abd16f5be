"""``rbim callback`` over an inbox on NATS servers: real processes, a real server."""

import json
import signal
import subprocess
import threading
from contextlib import contextmanager

import anyio
import orjson
import pytest

from helpers.callback_process import CLEAN, COMMAND, KNOWN, PATIENCE, event, serving
from rbim.callbacks import Delivery, delivery_of
from rbim.jetstream import JetStreamInbox

APPLICATION = """
import json

from rbim.callbacks import Event, Router, Text

router = Router()


@router.on(Text)
async def said(event: Text) -> None:
    if event.body == "poison":
        raise ValueError("not today")
    with open("handled.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps([event.to, event.body]) + "\\n")


@router.fallback
async def other(event: Event) -> None:
    pass
"""


@pytest.fixture
def app(tmp_path):
    (tmp_path / "handlers.py").write_text(APPLICATION)
    return tmp_path


@pytest.fixture
def inbox(nats, name):
    """The location of an inbox on the server, as people write it."""
    return f"{nats.urls[0]}/{name}"


@contextmanager
def working(folder, inbox):
    """Run a worker until the block ends; it must then end with exit code 0."""
    command = [*COMMAND, "work", "handlers:router", "--inbox", inbox]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=CLEAN, encoding="utf-8", cwd=folder) as popen:
        watchdog = threading.Timer(PATIENCE, popen.kill)
        watchdog.start()
        try:
            assert popen.stderr.readline() == f"rbim: handling the events of {inbox} with handlers:router\n"
            yield popen
            popen.send_signal(signal.SIGTERM)
            popen.communicate(timeout=PATIENCE)
            assert popen.returncode == 0
        finally:
            watchdog.cancel()
            popen.kill()


def call(*arguments, **environment):
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        check=False,
        env=CLEAN | KNOWN | environment,
        encoding="utf-8",
        timeout=PATIENCE,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def handled(folder):
    file = folder / "handled.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until(true):
    with anyio.fail_after(PATIENCE):
        while not true():
            await anyio.sleep(0.05)


async def test_two_receivers_and_two_workers(app, inbox, tmp_path):
    spools = tmp_path / "one.spool", tmp_path / "two.spool"
    with serving(inbox, "--spool", spools[0]) as first, serving(inbox, "--spool", spools[1]) as second:
        with working(app, inbox), working(app, inbox):
            for number in range(12):
                receiver = (first, second)[number % 2]
                sent = event(to=f"g{number % 3}", msgId=f"m{number}", body=f"第{number}条")
                assert (await anyio.to_thread.run_sync(receiver.post, sent))[0] == 200
            resent = event(to="g0", msgId="m0", body="第0条", resendFlag="1")
            assert (await anyio.to_thread.run_sync(second.post, resent))[0] == 200
            await until(lambda: len(handled(app)) == 12)
        for receiver in (first, second):
            assert receiver.stop()[0] == 0
    for group in range(3):
        assert [body for to, body in handled(app) if to == f"g{group}"] == [f"第{n}条" for n in range(group, 12, 3)]
    code, out, err = await anyio.to_thread.run_sync(lambda: call("status", inbox, "--json"))
    assert (code, err) == (0, "")
    assert orjson.loads(out) | {"lag": 0} == {
        "waiting": 0, "lag": 0, "done": 12, "dead": 0, "dead_kinds": {}, "quarantined": 0
    }  # fmt: skip


async def dead_letter(nats, name):
    """Store one event that cannot be read in quarantine, and make another a dead letter."""
    from datetime import UTC, datetime

    async with JetStreamInbox(nats.urls, name=name, replicas=1) as kept, kept.backlog() as backlog:
        now = datetime.now(UTC)
        poison: Delivery = delivery_of(event(body="poison"), app_id="an-app", received=now)
        assert await kept.accept(poison)
        assert await kept.accept(delivery_of(b"not json", app_id="an-app", received=now))
        with anyio.fail_after(PATIENCE):
            while not (claims := await backlog.claim(1)):
                await backlog.wait()
        await backlog.dead_letter(claims[0], error="ValueError: not today", more=0)


async def test_dead_letters_and_quarantine(app, inbox, nats, name):
    await dead_letter(nats, name)

    async def said(*arguments):
        return await anyio.to_thread.run_sync(lambda: call(*arguments))

    code, out, _ = await said("letters", "list", inbox, "--json")
    (letter,) = map(orjson.loads, out.splitlines())
    assert (code, letter["msg_type"], letter["error"]) == (0, "TEXT", "ValueError: not today")
    number = letter["number"]
    code, out, _ = await said("letters", "show", inbox, number, "--json")
    assert (code, orjson.loads(out)["document"]["body"]) == (0, "poison")
    code, out, _ = await said("letters", "list", "--quarantine", inbox, "--json")
    (unread,) = map(orjson.loads, out.splitlines())
    assert code == 0
    assert (await said("letters", "discard", inbox, unread["number"], "--yes"))[0] == 2  # of the other list
    assert (await said("letters", "discard", "--quarantine", inbox, unread["number"], "--yes"))[0] == 0
    code, out, _ = await said("replay", "--inbox", inbox, "--dead", "--dry-run", "--json")
    assert (code, orjson.loads(out)["events"]) == (0, 1)
    assert (await said("letters", "requeue", inbox, number))[0] == 0
    (app / "handlers.py").write_text(APPLICATION.replace('"poison"', '"mended"'))
    with working(app, inbox):
        await until(lambda: handled(app) == [["g1", "poison"]])
    code, out, _ = await said("replay", "--inbox", inbox, "--since", "1h")
    assert (code, out) == (0, "1 event will be handled again\n")
    (app / "handled.jsonl").unlink()
    with working(app, inbox):
        await until(lambda: handled(app) == [["g1", "poison"]])
