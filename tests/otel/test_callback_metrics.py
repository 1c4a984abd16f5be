"""Metrics of receivers and their handlers."""

from datetime import timedelta

import anyio

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.receiving import OLD, body, post
from helpers.waiting import until
from rbim.callbacks import (
    Accepted,
    DeadLettered,
    HandlingEnded,
    HungHandler,
    LoopBlocked,
    MemorySink,
    NotEntered,
    PartEnded,
    PartRestarted,
    Quarantined,
    Reason,
    Receiver,
    Refused,
    RetriedAlone,
    Skewed,
    Spooled,
)


async def test_the_answers_of_a_receiver_and_the_rest_of_their_time(telemetry, clock):
    class Slow(MemorySink):
        async def accept(self, delivery, /):
            await clock.sleep(0.5)
            return await super().accept(delivery)

    receiver = Receiver(
        credentials=[CREDENTIALS, OLD],
        sink=Slow(clock=clock),
        clock=clock,
        mode="high-guarantee",
        observers=[telemetry.observer],
    )
    content = body()
    statuses = []

    async def deliver(content, **how):
        statuses.append((await post(receiver, content, **how)).status)

    async with receiver:
        for each, how in (
            (content, {}),
            (content, {}),
            (body(msgId="m2"), {"credentials": OLD}),
            (b"no JSON", {}),
        ):
            async with anyio.create_task_group() as tasks:
                before = len(statuses)
                tasks.start_soon(lambda each=each, how=how: deliver(each, **how))
                await until(lambda before=before: len(statuses) > before, clock)
        await deliver(body(msgId="m3"), MD5="0" * 32)
        await deliver(body(msgId="m4"), at=clock.now() - timedelta(hours=1))
    assert statuses == [200, 200, 200, 200, 401, 401]
    counted = {tuple(about.values()): number for about, number in telemetry.points("rbim.receiver.deliveries")}
    assert counted == {("accepted",): 3, ("known",): 1, ("refused", "checksum_mismatch"): 1, ("refused", "stale"): 1}
    ((_, (count, total)),) = telemetry.points("rbim.receiver.headroom")
    assert count == 4
    assert 4 * 4.2 < total <= 4 * 4.5
    assert telemetry.points("rbim.receiver.incidents") == [
        ({"rbim.observation": "OldToken"}, 1),
        ({"rbim.observation": "Quarantined", "rbim.reason": "unreadable"}, 1),
        ({"rbim.observation": "Skewed", "rbim.result": "refused"}, 1),
    ]
    exported = telemetry.text()
    for secret in (CREDENTIALS.app_token.reveal(), "你好", "m1", APP_ID):
        assert secret not in exported


def test_each_observation_counts_once(telemetry):
    about_handler = {"key": "k", "attempt": 1, "event": "Text", "handler": "f", "app_id": "a"}
    for observation in (
        Accepted(key="k", new=True, elapsed=6.0),
        Spooled(key="k", why="slow", kept=True),
        Spooled(key="k", why="slow", kept=False),
        Refused(reason=Reason.STALE, detail="d"),
        Skewed(skew=301.0, accepted=False),
        Skewed(skew=-61.0, accepted=True),
        Quarantined(key="k", problem="p", other_content=True),
        HandlingEnded(elapsed=0.25, error=None, cancelled=False, **about_handler),
        HandlingEnded(elapsed=0.5, error=ValueError(), cancelled=False, **about_handler),
        HandlingEnded(elapsed=1.0, error=None, cancelled=True, **about_handler),
        DeadLettered(key="k", attempt=2, error="e"),
        DeadLettered(error="e", crashes=4, **about_handler),
        RetriedAlone(key="k", crashes=1, alone=True, app_id="a"),
        HungHandler(seconds=60.0, **about_handler),
        LoopBlocked(handler="f", seconds=20.0),
        PartEnded(part="worker", error="e", pause=1.0),
        PartEnded(part="receiver", error="e", pause=1.0),
        PartRestarted(part="worker", restarts=1),
        NotEntered(),
    ):
        telemetry.observer(observation)
    read = {name: telemetry.points(name) for name in telemetry.collect()}
    incidents = {tuple(about.values()): number for about, number in read.pop("rbim.receiver.incidents")}
    assert incidents == dict.fromkeys(
        (
            ("Spooled",),
            ("Skewed", "refused"),
            ("Skewed", "accepted"),
            ("Quarantined", "other content"),
            ("DeadLettered", "failure"),
            ("DeadLettered", "f", "crash"),
            ("RetriedAlone",),
            ("HungHandler", "f"),
            ("LoopBlocked", "f"),
            ("PartEnded", "worker"),
            ("PartEnded", "receiver"),
            ("PartRestarted", "worker"),
            ("NotEntered",),
        ),
        1,
    )
    assert read == {
        "rbim.receiver.deliveries": [
            ({"rbim.result": "accepted"}, 1),
            ({"rbim.result": "unavailable"}, 1),
            ({"rbim.result": "refused", "error.type": "stale"}, 1),
        ],
        "rbim.receiver.headroom": [({}, (1, 0))],
        "rbim.worker.handling.duration": [
            ({"rbim.handler": "f"}, (1, 0.25)),
            ({"rbim.handler": "f", "error.type": "ValueError"}, (1, 0.5)),
            ({"rbim.handler": "f", "error.type": "cancelled"}, (1, 1)),
        ],
    }
