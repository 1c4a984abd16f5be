"""An inbox with events of every state, for its page."""

from datetime import UTC, datetime

from helpers.callback_process import APP, event
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox

TRACE = 'Traceback (most recent call last):\n  File "/srv/handlers.py", line 3, in on_text\n    store(event)\n{}\n'
LOST = "app.errors.OrderError: no connection to orders"
WRONG = "ValueError: <img src=x onerror=alert(1)>"


def accepted(number=1, **fields):
    return delivery_of(event(msgId=f"m{number}", **fields), app_id=APP, received=datetime.now(UTC))


async def fill(inbox, errors, quarantined=0, handled=0, waiting=0):
    for number, _ in enumerate(errors):
        await inbox.accept(accepted(f"dead{number}", to=f"g{number}"))
    async with inbox.backlog() as backlog:
        for error in errors:
            while not (claims := await backlog.claim(1)):
                await backlog.wait()
            await backlog.dead_letter(claims[0], error=TRACE.format(error), more=0)
        for number in range(handled):
            await inbox.accept(accepted(f"done{number}", to="handled"))
            (claim,) = await backlog.claim(1)
            await backlog.done((claim,), more=0)
    for number in range(quarantined):
        await inbox.accept(accepted(f"other{number}", fromAccount="other-app#1"))
    for number in range(waiting):
        await inbox.accept(accepted(f"new{number}", to="waits"))


async def filled(path, *errors, **counts):
    async with SqliteInbox(path) as inbox:
        await fill(inbox, errors, **counts)
