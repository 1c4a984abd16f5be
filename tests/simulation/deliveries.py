"""Messages on their way to receivers: what the platform posts, what happens to it, and what others post.

A delivery is at risk on its way there and on its way back, and goes on when the platform waits for it no more.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING

from attrs import define, field

from rbim.emulator.copies.targets import NoAnswer

from . import inbox_checks as checks
from .virtual_time import TIME

if TYPE_CHECKING:
    from .process import Process

ANSWER_IN = 5.0
"""Seconds that the platform waits for an answer."""


@define(eq=False)
class Post:
    """One delivery: when it left the platform, what happened to it, and the receiver's answer."""

    message: Message
    left: float
    fate: str = "ok"
    status: int | None = None

    def __str__(self):
        return f"at {self.left:.3f} s ({self.fate}): {self.status}"


@define(eq=False)
class Message:
    """One message: who sends it and how its handler behaves; then its deliveries, and how it was handled."""

    number: int
    at: float
    sender: str
    handler: str = "well"
    seconds: float = 0.0
    posts: list[Post] = field(factory=list)
    arrived: int = 0  # its place among those that a receiver got, the first time
    accepted_at: float = math.inf  # the first time that a receiver answered 200
    begun: list[tuple[float, Process, int]] = field(factory=list)  # time, process, attempt
    ended: list[tuple[float, int]] = field(factory=list)  # time, and the count of troubles until then
    replays: int = 0
    deaths: int = 0  # of processes that handled only this message and were not asked to leave

    @property
    def text(self):
        return f"m{self.number:04d}"

    def __str__(self):
        posts = "; ".join(map(str, self.posts)) or "never"
        begun = ", ".join(f"{at:.3f} s on {process.name}" for at, process, _ in self.begun) or "never"
        ended = ", ".join(f"{at:.3f} s" for at, _ in self.ended) or "never"
        return f"{self.text} of {self.sender} ({self.handler}); posted {posts}; begun {begun}; handled {ended}"


class Deliveries:
    """Ways from the platform to the receivers whose ``doors`` are open; ``count`` is the number of deliveries so far."""

    def __init__(self, inbox, weather):
        self.doors = {}
        self.waiting = {}
        self.count = 0
        self._arrived = 0
        self._inbox, self._world, self._weather = inbox, inbox.world, weather

    def break_connections(self, process):
        """End the connections of a process that has ended, without an answer."""
        self.doors.pop(process, None)
        for future in [each for each, its in self.waiting.items() if its is process]:
            del self.waiting[future]
            if not future.done():
                future.set_result(None)

    async def carry(self, headers, body):
        """Carry one delivery and its answer."""
        world, weather = self._world, self._weather
        self.count += 1
        post = Post(self._inbox.messages[json.loads(body)["body"]], TIME.now)
        post.message.posts.append(post)
        there, back = weather.round_trip(world) / 2, weather.round_trip(world) / 2
        post.fate = weather.fate(world)
        world.note("platform", f"posts {post.message.text} ({post.fate})")
        if post.fate == "refused":
            await asyncio.sleep(there)
            raise NoAnswer("connection refused")
        answer = world.loop.create_future()
        if post.fate == "late-arrival":
            there += ANSWER_IN + world.stream("late-arrival seconds").random() * weather.late_by
        if post.fate != "lost-request":
            world.at(TIME.now + there, self._arrive, post, headers, body, back, answer)
        storm = self._inbox.sizes.situation == "storm"
        if storm and world.happens("forged", 0.03):
            world.at(TIME.now + there, self._forge, headers, body)
        if storm and world.happens("recorded", 0.03):
            world.at(TIME.now + world.stream("recorded seconds").uniform(1, 900), self._forge, headers, body, True)  # noqa: FBT003
        status = await answer
        if status is None:
            raise NoAnswer("connection reset")
        return status

    def _arrive(self, post, headers, body, back, answer):
        """Let a delivery reach a receiver, and send what its fate leaves of the answer ``back`` seconds later."""
        world = self._world
        again = self._weather.stalled_until(world)
        if again is not None:
            world.at(again, self._arrive, post, headers, body, back, answer)
            return
        if post.fate in {"reset-before", "server-error"}:
            status = None if post.fate == "reset-before" else 503
            world.loop.call_later(back, _end, answer, status)
            return
        replied = world.loop.create_future()

        def reply(done):
            status = done.result()
            post.status = status
            world.note("receiver", f"answers {post.message.text}: {status}")
            if status == 200:
                post.message.accepted_at = min(post.message.accepted_at, TIME.now)
            if post.fate not in {"lost-answer", "late-arrival"}:
                world.at(TIME.now + back, _end, answer, None if post.fate == "reset-after" else status)

        replied.add_done_callback(reply)
        self.deliver(headers, body, replied)
        if self._inbox.sizes.situation == "storm" and world.happens("posted-twice", 0.03):
            self.deliver(headers, body, world.loop.create_future())

    def deliver(self, headers, body, replied):
        """Give a delivery to one of the receivers; None is the answer where there is none, or where it dies."""
        if not self.doors:
            replied.set_result(None)
            return
        process = self._world.stream("balancer").choice(list(self.doors))
        self.waiting[replied] = process
        process.spawn(self._receive(process, self.doors[process], headers, body, replied))

    async def _receive(
        self,
        process,
        receiver,
        headers,
        body,
        replied,
    ):
        began = TIME.now
        self._arrived += 1
        message = self._inbox.posted.get(body)
        if message is not None:
            message.arrived = message.arrived or self._arrived
        try:
            status = (await receiver.receive(headers, body)).status
        except Exception as error:
            self._world.fail("receive raises nothing", repr(error))
            status = 500
        checks.check_answer(self._inbox, process, receiver, status, began)
        self.waiting.pop(replied, None)
        if not replied.done():
            replied.set_result(status)

    def _forge(self, headers, body, recorded=False):  # noqa: FBT002
        """Post what is not the platform's: a recorded delivery once more, or one whose body or headers were changed."""
        draw = self._world.stream("forgery")
        if not recorded:
            at = draw.randrange(len(body))
            how = draw.choice(["body", "time", "both sums"])
            if how == "body":
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            elif how == "time":
                headers = {**headers, "CurTime": str(int(headers["CurTime"]) + 1)}
            else:
                headers = {**headers, "MD5": headers["CheckSum"], "CheckSum": headers["MD5"]}
        replied = self._world.loop.create_future()
        replied.add_done_callback(lambda done: checks.check_forgery(self._inbox, done.result(), recorded=recorded))
        self.deliver(headers, body, replied)


def _end(answer, status):
    if not answer.done():
        answer.set_result(status)
