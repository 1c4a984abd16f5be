"""Named calls through a proxy, and whether what the client says of each agrees with what the platform has seen."""

from collections import Counter

import anyio
from attrs import define, field, frozen

from rbim import (
    AsyncClient,
    Attempt,
    CreateGroup,
    GroupType,
    ModifyGroup,
    Outcome,
    Permission,
    RbimError,
    Retry,
    SearchPublicGroups,
)

PATIENCE = 60.0


@frozen(kw_only=True)
class Call:
    """One call: its attempts, and its outcome (None: answered)."""

    name: str
    kind: str
    attempts: tuple[Attempt, ...]
    outcome: Outcome | None


@frozen(kw_only=True)
class Tally:
    """The calls of a run, counted. ``lost``: answered, and not seen. ``unseen``: seen more often than the attempts allow."""

    calls: int
    answered: int
    refused: int
    not_sent: int
    unknown: int
    again: int
    lost: int
    unseen: int
    wrong: tuple[str, ...]


@define
class Calls:
    """The calls of a run, by name."""

    made: dict[str, Call] = field(factory=dict)

    def tally(self, seen):
        outcomes = Counter(call.outcome for call in self.made.values())
        lost, unseen, wrong = 0, 0, []
        for name, call in self.made.items():
            times, certain, possible = seen.get(name, 0), 0, 0
            for attempt in call.attempts:
                certain += attempt.status == 200
                possible += attempt.outcome is Outcome.UNKNOWN
            lost += max(0, certain - times)
            unseen += max(0, times - certain - possible)
            if times and call.outcome is Outcome.NOT_SENT:
                wrong.append(f"{name} was not sent, and seen {times} times")
            if call.kind == "never" and len([each for each in call.attempts if each.outcome is not Outcome.NOT_SENT]) > 1:
                sent_again = [each for each in call.attempts[:-1] if each.outcome is Outcome.UNKNOWN]
                wrong += [f"{name} was sent again after {sent_again}"] if sent_again else []
        wrong += [f"{name} was never called" for name in seen if name and name not in self.made]
        return Tally(
            calls=len(self.made),
            answered=outcomes[None],
            refused=outcomes[Outcome.REFUSED],
            not_sent=outcomes[Outcome.NOT_SENT],
            unknown=outcomes[Outcome.UNKNOWN],
            again=sum(len(call.attempts) - 1 for call in self.made.values()),
            lost=lost,
            unseen=unseen,
            wrong=tuple(wrong),
        )


def _operation(kind, name, group_id=""):
    if kind == "safe":
        return SearchPublicGroups(name=name)
    if kind == "idempotent":
        return ModifyGroup(group_id=group_id, name=name, permission=Permission.OPEN)
    return CreateGroup(name=name, type=GroupType.VIP)


async def load(  # the load, each part by keyword
    origin, credentials, transport, meanwhile, *, workers=10, pause=lambda: 0.001, attempts=3
):
    """Call until ``meanwhile`` ends, which gets a function that waits for so many more calls; return all calls."""
    made, over, progress = Calls(), anyio.Event(), [anyio.Event()]

    async def calls(client, kind, name, group_id=""):
        try:
            done = await client.exchange(_operation(kind, name, group_id))
        except RbimError as error:
            made.made[name] = Call(name=name, kind=kind, attempts=error.attempts, outcome=error.outcome)
            return None
        made.made[name] = Call(name=name, kind=kind, attempts=done.attempts, outcome=None)
        return done.answer

    async def works(client, worker, group_id):
        number = 0
        while not over.is_set():
            number += 1
            await calls(client, ("never", "safe", "idempotent")[number % 3], f"n-{worker}-{number}", group_id)
            progress[0].set()
            progress[0] = anyio.Event()
            await anyio.sleep(pause())

    async def goes_on(calls):
        wanted = len(made.made) + calls
        with anyio.fail_after(PATIENCE):
            while len(made.made) < wanted:
                await progress[0].wait()

    async with (
        AsyncClient(
            base_url=origin, credentials=credentials, transport=transport, retry=Retry(attempts=attempts, base=0.05)
        ) as client,
        anyio.create_task_group() as tasks,
    ):
        group = await calls(client, "never", "first")
        for worker in range(workers):
            tasks.start_soon(works, client, worker, group.group_id)
        await meanwhile(goes_on)
        over.set()
    return made
