"""The network between clients and the platform, and the platform's own log of what arrived.

A request is at risk on its way there and on its way back, and goes on when its sender has died. The platform is rbim's
emulator, without its doors: what it did is read from its request log, and what left from the network's.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import define, field

from rbim.errors import NotSent, Unanswered
from rbim.http import Response

from .process import current_process
from .virtual_time import TIME

if TYPE_CHECKING:
    from .process import Process

TROUBLES = ("refused", "lost-request", "lost-answer", "reset-before", "reset-after", "late-arrival", "server-error")
"""What may happen to one request: no connection; no effect and no answer; the effect and no answer; a reset before or after
the effect; the effect up to ``late_by`` seconds after its sender gave up; HTTP 503 without an effect.
"""

ALL_TROUBLES = (*TROUBLES, "partition", "stall")


@define(kw_only=True)
class Weather:
    """How the network is. ``odds`` are the probabilities of :data:`TROUBLES`; all is well from ``fair_from`` on.

    A round trip takes ``latency`` seconds, the median of a log-normal distribution with ``spread``. ``partitions`` are
    ``(begin, end, trouble)``: the trouble happens to each request that leaves then. ``stalls`` are ``(begin, end)``: what
    arrives meanwhile is answered afterwards.
    """

    latency: float = 0.02
    spread: float = 0.5
    odds: dict[str, float] = field(factory=dict[str, float])
    late_by: float = 90.0
    partitions: list[tuple[float, float, str]] = field(factory=list)
    stalls: list[tuple[float, float]] = field(factory=list)
    fair_from: float = math.inf

    @classmethod
    def drawn(cls, world, fair_from, *, worst=0.03, longest=200.0):
        """Draw the weather of a run from the stream ``weather``.

        Each trouble is absent or has the probability ``worst``; a partition lasts at most ``longest`` seconds.
        """
        draw = world.stream("weather")
        weather = cls(latency=draw.choice([0.005, 0.05, 0.5]), spread=draw.choice([0.0, 0.5, 1.0]), fair_from=fair_from)
        weather.odds = {name: draw.choice([0, worst]) for name in TROUBLES}
        for _ in range(draw.choice([0, 0, 1, 2])):
            begin, lasts = draw.random() * fair_from, draw.choice([1.0, longest / 10, longest])
            trouble = draw.choice(["refused", "lost-request", "lost-answer"])
            weather.partitions.append((begin, min(fair_from, begin + lasts), trouble))
        for _ in range(draw.choice([0, 0, 1])):
            begin, lasts = draw.random() * fair_from, draw.choice([1.0, 20.0])
            weather.stalls.append((begin, min(fair_from, begin + lasts)))
        return weather

    def round_trip(self, world):
        """Draw the seconds of one round trip."""
        return self.latency * math.exp(self.spread * world.stream("latency").gauss(0, 1))

    def fate(self, world):
        """Draw what happens to a request; every stream gives one number for each request, whatever the others say."""
        if TIME.now >= self.fair_from:
            return "ok"
        hit = [name for name, odds in self.odds.items() if odds and world.happens(name, odds)]
        for begin, until, trouble in self.partitions:
            if world.is_on("partition") and begin <= TIME.now < until:
                world.happened["partition"] += 1
                return trouble
        return hit[0] if hit else "ok"

    def stalled_until(self, world):
        """Return when what arrives now goes on, or None where nothing holds it up."""
        for begin, until in self.stalls:
            if world.is_on("stall") and begin <= TIME.now < until:
                world.happened["stall"] += 1
                return until + world.stream("stall").random() * 0.1
        return None


@define(kw_only=True, eq=False)
class Sending:
    """One request: what left, and what became of it.

    ``left``, ``arrived`` and ``ended`` (its sender stopped waiting) are times, or None; ``fate`` is a trouble or ``ok``.
    ``code`` and ``effect`` are those of the platform's log; ``effect`` is False where the request did not arrive.
    """

    number: int
    left: float
    process: Process | None
    operation: str
    body: dict[str, Any]
    timeout: float
    fate: str = "ok"
    arrived: float | None = None
    ended: float | None = None
    code: str | None = None
    effect: bool = False
    facts: dict[str, Any] = field(factory=dict)
    """For the scenario."""

    def __str__(self):
        marks = ["effect" if self.effect else "no effect", *([] if self.fate == "ok" else [self.fate])]
        return f"#{self.number} {self.operation} at {self.left:.3f} s ({', '.join(marks)}, code {self.code})"


class Network:
    """Ways to one platform. ``sendings`` has every request that left a client, in order.

    ``leaves(sending)`` is called when a request leaves, before anything else can happen. ``answers(sending, response)`` may
    replace the platform's response.
    """

    def __init__(
        self,
        world,
        platform,
        weather,
        *,
        leaves=None,
        answers=None,
    ):
        self.world, self.platform, self.weather = world, platform, weather
        self.sendings = []
        self.in_flight = Counter()
        """Requests by the process that waits for their answers, dead ones included."""
        self._leaves, self._answers = leaves, answers

    def transport(self):
        """Return a transport for a client."""
        return Transport(self)

    async def carry(self, request, timeout):
        """Carry a request and its answer. Raises NotSent and Unanswered."""
        sending = Sending(
            number=len(self.sendings) + 1,
            left=TIME.now,
            process=current_process.get(),
            operation=request.path.rpartition("/")[2],
            body=json.loads(request.body),
            timeout=timeout,
        )
        there, back = self.weather.round_trip(self.world) / 2, self.weather.round_trip(self.world) / 2
        sending.fate = self.weather.fate(self.world)
        if sending.fate == "refused":
            await asyncio.sleep(min(there, timeout))
            raise NotSent("connection refused")
        self.sendings.append(sending)
        self.in_flight[sending.process] += 1
        self.world.note(sending.process.name if sending.process else "client", f"sends {_described(sending)}")
        if self._leaves is not None:
            self._leaves(sending)
        answer = self.world.loop.create_future()
        if sending.fate == "late-arrival":
            there += timeout + self.world.stream("late-arrival seconds").random() * self.weather.late_by
        if sending.fate != "lost-request":  # in no process: it arrives, whoever dies
            self.world.at(TIME.now + there, self._arrive, sending, request, back, answer)
        late = Unanswered(f"no whole answer within {timeout:g} s")
        timer = self.world.loop.call_later(max(0.0, timeout), _end, answer, None, late)
        try:
            return await answer
        except Unanswered as error:
            sending.facts["late"] = error is late
            raise
        finally:
            sending.ended = TIME.now
            self.in_flight[sending.process] -= 1
            timer.cancel()

    def _arrive(self, sending, request, back, answer):
        """Let a request reach the platform, and send what its fate leaves of the answer ``back`` seconds later."""
        world = self.world
        again = self.weather.stalled_until(world)
        if again is not None:
            sending.facts["stalled"] = True
            world.at(again, self._arrive, sending, request, back, answer)
            return
        response, error = None, None
        if sending.fate in {"reset-before", "reset-after"}:
            error = Unanswered("connection reset")
        if sending.fate == "server-error":
            response = Response(503, {}, b"<html>")
        elif sending.fate != "reset-before":
            response, delay = self._serve(sending, request)
            back += delay
        if sending.fate != "lost-answer":
            world.loop.call_later(back, _end, answer, response, error)

    def _serve(self, sending, request):
        served = self.platform.platform.serve(request.method, request.path, request.query, request.headers, request.body)
        record = self.platform.requests.records[-1]
        sending.arrived, sending.code, sending.effect = TIME.now, record.code, record.effect
        response = served.response
        if self._answers is not None:
            response = self._answers(sending, response)
        late = ", late" if sending.fate == "late-arrival" else ""
        self.world.note(
            "platform", f"#{sending.number} arrives{late}: {response.status} {record.code}, effect {record.effect}"
        )
        return response, served.injection.delay


def _end(answer, response, error):
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(response)


class Transport:
    """A client's transport; see :class:`Network`."""

    def __init__(self, network):
        self._network = network

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def send(self, request, /, *, timeout):
        """Carry one request. Raises NotSent and Unanswered."""
        return await self._network.carry(request, timeout)


def _described(sending):
    body = sending.body
    named = body.get("members", body.get("member", body.get("userName", "")))
    members = named if isinstance(named, list) else [named]
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    fate = "" if sending.fate == "ok" else f" ({sending.fate})"
    return f"#{sending.number} {sending.operation} {body.get('groupId', body.get('name', ''))} {members[0]}{more}{fate}"
