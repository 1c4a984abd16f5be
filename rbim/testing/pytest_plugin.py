"""pytest fixtures for the emulator. pytest finds this plugin by itself if rbim is installed.

The fixtures are ``rbim_emulator`` (the emulated platform), ``rbim_clock`` (its emulated clock), ``rbim_client`` (a client of
it, which the test enters) and ``rbim_inbox`` (the message copies and group events that it delivers). They are synchronous
and therefore work with every plugin for asynchronous tests. ``@pytest.mark.rbim(...)`` configures the emulator. Assertions
on lists of operations show the differences field by field.

Until a test uses a fixture, only pytest is imported: the plugin costs other test suites nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rbim.callbacks.events import Event
    from rbim.client.client import AsyncClient
    from rbim.credentials import Credentials
    from rbim.dialect import Dialect
    from rbim.emulator.clock import EmulatedClock
    from rbim.emulator.emulator import Emulator
    from rbim.operations.base import Operation

__all__ = ["Inbox", "rbim_client", "rbim_clock", "rbim_emulator", "rbim_inbox"]

MARKER = "rbim(faults=(), seed=0, strict_dialect=False, accounts=None, ...): the faults and options of rbim_emulator"
BASE_URL = "http://emulator"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def rbim_clock() -> EmulatedClock:
    """The clock of the emulator and of its client: emulated time, which advances by itself when all tasks sleep.

    It starts on 2026-01-02 at 03:04:05 UTC. Override the fixture for another start, or for a clock that only
    ``await rbim_clock.advance(seconds, hours=...)`` moves (``EmulatedClock(start, auto=False)``).
    """
    from rbim.emulator.clock import EmulatedClock

    return EmulatedClock(auto=True)


@pytest.fixture
def rbim_emulator(request: pytest.FixtureRequest, rbim_clock: EmulatedClock) -> Emulator:
    """A new emulator for each test, with the clock ``rbim_clock``.

    ``@pytest.mark.rbim`` takes the options of :class:`~rbim.emulator.Emulator`, by keyword, and ``faults``, a list of
    :class:`~rbim.emulator.faults.Fault`. If several markers set an option, the one closest to the test wins.
    """
    from inspect import signature

    from rbim.emulator.emulator import Emulator

    known = {"faults", *signature(Emulator).parameters} - {"clock"}
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("rbim"))):
        unknown = [*map(repr, marker.args), *(marker.kwargs.keys() - known)]
        if unknown:
            allowed = ", ".join(sorted(known))
            pytest.fail(
                f"@pytest.mark.rbim does not accept {', '.join(unknown)}: use {allowed}, each by keyword", pytrace=False
            )
        options |= marker.kwargs
    faults = options.pop("faults", ())
    emulator = Emulator(clock=rbim_clock, **options)
    emulator.faults.add(*faults)
    return emulator


@pytest.fixture
def rbim_client(rbim_emulator: Emulator) -> AsyncClient:
    """A client of ``rbim_emulator``, without sockets. The test enters it: ``async with rbim_client as client``.

    The random pauses before its retries are the same in each run.
    """
    from random import Random

    from rbim.client.client import AsyncClient
    from rbim.client.retry import Retry

    return AsyncClient(
        base_url=BASE_URL,
        credentials=rbim_emulator.credentials,
        transport=rbim_emulator,
        clock=rbim_emulator.clock,
        dialect=rbim_emulator.dialect,
        retry=Retry(random=Random(0).random),  # noqa: S311  # reproducible on purpose
    )


class Inbox:
    """A receiver for tests: it accepts and stores all deliveries with a valid signature.

    ``messages``: the event bodies, with the interface's names (``convType``, ``to``, ...), in the order of arrival;
    resends and duplicates are included. ``events``: the same as typed events of :mod:`rbim.callbacks`. ``rejected``: the
    reason for each delivery that was not accepted. Interface: Authentication 3; Conversation message event body.
    """

    def __init__(self, credentials: Credentials, dialect: Dialect | None = None) -> None:
        self._dialect = dialect
        self.messages: list[dict[str, Any]] = []
        self.rejected: list[str] = []
        self._credentials = credentials
        self.events: list[Event] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def of(self, msg_type: str) -> list[dict[str, Any]]:
        """Return the messages of one ``msgType`` (``TEXT``, ``TEAM_JOIN``), in the order of arrival."""
        return [message for message in self.messages if message.get("msgType") == msg_type]

    async def receive(self, headers: Mapping[str, str], body: bytes) -> int:
        """Accept one delivery and return the HTTP status: 200; 401: invalid signature; 400: not a JSON object.

        The age of a delivery is not checked, because emulated time may be any time.
        """
        from datetime import UTC, datetime

        from rbim.callbacks.events import document_of, parse
        from rbim.callbacks.signature import Policy, Rejected, verify
        from rbim.errors import CallbackRejected

        any_age = Policy(back=None, ahead=None, max_body=None)
        verified = verify(headers, body, credentials=self._credentials, now=datetime.now(UTC), policy=any_age)
        if isinstance(verified, Rejected):
            self.rejected.append(f"invalid signature: {verified.detail}: {body!r}")
            return 401
        try:
            document, event = document_of(body), parse(body, dialect=self._dialect)
        except CallbackRejected as error:
            self.rejected.append(f"{error.message}: {body!r}")
            return 400
        self.messages.append(document)
        self.events.append(event)
        return 200


@pytest.fixture
def rbim_inbox(rbim_emulator: Emulator) -> Inbox:
    """An inbox for the messages and group events that ``rbim_emulator`` copies from now on, in normal mode.

    They arrive with ``await rbim_emulator.deliver()``. For the other mode, call ``rbim_emulator.copy_to(rbim_inbox,
    mode="high-guarantee")``.
    """
    inbox = Inbox(rbim_emulator.credentials, rbim_emulator.dialect)
    rbim_emulator.copy_to(inbox)
    return inbox


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show the differences between two lists of operations, field by field."""
    loaded = sys.modules.get("rbim.operations.base")  # not loaded: no operations to compare
    if loaded is None or op != "==" or not (isinstance(left, list) and isinstance(right, list)):
        return None
    ours, theirs = cast("list[Operation[Any]]", left), cast("list[Operation[Any]]", right)
    entries = [*ours, *theirs]  # not their sum: a class of lists may add in its own way
    if not entries or not all(isinstance(entry, loaded.Operation) for entry in entries):
        return None
    return list(_difference(ours, theirs))


def _difference(left: list[Operation[Any]], right: list[Operation[Any]]) -> Iterator[str]:
    from rbim.operations.base import fields_of

    yield f"{_count(left)} == {_count(right)}"
    if len(left) != len(right):
        longer, side = (left, "left") if len(left) > len(right) else (right, "right")
        at = min(len(left), len(right))
        yield f"only on the {side}, from index {at} on: {', '.join(map(repr, longer[at:]))}"
    for index, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if type(ours) is not type(theirs):
            yield f"at index {index}: {ours!r} != {theirs!r}"
        elif ours != theirs:
            yield f"at index {index}, {type(ours).__name__}:"
            for name in (each.name for each in fields_of(type(ours))):
                if getattr(ours, name) != getattr(theirs, name):
                    yield f"  {name}: {getattr(ours, name)!r} != {getattr(theirs, name)!r}"


def _count(operations: list[Operation[Any]]) -> str:
    return "1 operation" if len(operations) == 1 else f"{len(operations)} operations"
