"""``rbim callback serve --page`` in a process of its own, its page, and an inbox with dead letters."""

import re
from contextlib import contextmanager
from datetime import UTC, datetime

from helpers.callback_process import APP, event, serving
from helpers.page_client import PageClient
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox

TRACE = 'Traceback (most recent call last):\n  File "/srv/handlers.py", line 3, in on_text\n    store(event)\n{}\n'
LOST = "app.errors.OrderError: no connection to orders"
WRONG = "ValueError: <img src=x onerror=alert(1)>"


def accepted(number=1, **fields):
    return delivery_of(event(msgId=f"m{number}", **fields), app_id=APP, received=datetime.now(UTC))


async def fill(inbox, errors, quarantined=0):
    """Put a dead letter with each of the errors into an inbox, and events of another application into quarantine."""
    for number, _ in enumerate(errors):
        await inbox.accept(accepted(f"dead{number}", to=f"g{number}"))
    async with inbox.backlog() as backlog:
        for error in errors:
            while not (claims := await backlog.claim(1)):
                await backlog.wait()
            await backlog.dead_letter(claims[0], error=TRACE.format(error), more=0)
    for number in range(quarantined):
        await inbox.accept(accepted(f"other{number}", fromAccount="other-app#1"))


@contextmanager
def serving_page(path, *flags, **environment):
    """Serve an inbox, and give the process and its page."""
    with serving(path, "--page", *flags, **environment) as process:
        for line in process.popen.stderr:
            if found := re.fullmatch(r"rbim: page: (\S+)\n", line):
                break
        with PageClient(found[1]) as page:
            yield process, page


async def filled(path, errors, quarantined=0):
    async with SqliteInbox(path) as inbox:
        await fill(inbox, errors, quarantined)
