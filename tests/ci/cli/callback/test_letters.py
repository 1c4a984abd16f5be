"""``rbim callback letters`` as processes, and beside a receiver that runs."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from helpers.callback_process import APP, COMMAND, counts, event, serving
from helpers.processes import ran
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.cli import Exit
from rbim.emulator.clock import EmulatedClock


@pytest.fixture
def inbox(tmp_path):
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


def test_requeued_ones_are_handled_at_once_by_a_receiver_that_runs(inbox, cli):
    with serving(inbox, "--print") as receiver:
        assert receiver.post(event(msgId="new"))[0] == 200
        assert receiver.line()["msgId"] == "new"
        assert cli("letters", "requeue", inbox, 3, 1, 3) == (Exit.DONE, "2 events will be handled again\n", "")
        assert {receiver.line()["msgId"], receiver.line()["msgId"]} == {"m1", "m3"}
        assert cli("letters", "requeue", inbox, "--all", "--conversation", "team/g4")[0] == Exit.DONE
        assert receiver.line()["msgId"] == "m4"
        assert cli("letters", "discard", inbox, 2, "--yes") == (Exit.DONE, "1 event deleted\n", "")
        assert receiver.stop()[0] == 0
    assert (counts(inbox).done, counts(inbox).dead) == (4, 0)


def test_without_a_terminal_a_process_deletes_nothing(inbox):
    done = ran(*COMMAND, "letters", "discard", inbox, "1", input="y\n")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "there is no terminal to confirm it" in done.stderr
    assert counts(inbox).dead == 4
