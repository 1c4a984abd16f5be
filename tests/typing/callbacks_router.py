"""What type checkers make of handlers. Never executed: mypy and pyright read it, in strict mode, as they do ``api.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from rbim.callbacks.events import ConvType, Event, Message, TeamKick, Text, UnknownEvent
from rbim.callbacks.worker.router import CallNext, HandlerContext, Router
from rbim.callbacks.worker.worker import Worker

if TYPE_CHECKING:
    from rbim.callbacks.inbox.memory import MemorySink
    from rbim.callbacks.inbox.protocols import Inbox

router = Router()

# ------------------------------------------------------------------------------------- right uses


@router.on(TeamKick)
async def kicked(event: TeamKick) -> None:
    assert_type(event, TeamKick)


@router.on(TeamKick, conv_type="TEAM")
async def kicked_and_told(event: TeamKick, handling: HandlerContext) -> None:
    assert_type(event, TeamKick)
    assert_type(handling.attempt, int)


@router.on(Text, conv_type=ConvType.TEAM)
def said_in_a_group(event: Text, handling: HandlerContext) -> int:
    return handling.attempt + len(event.body)


@router.on(Message)
def said(event: Event) -> None:
    """A handler may take more than it is given."""


@router.on(UnknownEvent)
async def unknown(event: UnknownEvent) -> None:
    assert_type(event.document.get("x"), Any | None)


@router.on(Text, when=lambda event: event.body.startswith("/"))
async def command(event: Text) -> None: ...


@router.middleware
async def around(event: Event, handling: HandlerContext, call_next: CallNext) -> None:
    assert_type(event, Event)
    assert_type(handling.body, bytes)
    await call_next()


@router.fallback
async def anything_else(event: Event) -> None:
    """What no other handler is for."""


async def a_handler_is_still_a_function(event: TeamKick, text: Text, handling: HandlerContext) -> None:
    assert_type(await kicked(event), None)
    assert_type(await kicked_and_told(event, handling), None)
    assert_type(said_in_a_group(text, handling), int)


def protocols_fit(sink: MemorySink) -> Inbox:
    Worker(sink, router)
    return sink


# ------------------------------------------------------------------------------------- wrong uses

other = Router()


@other.on(TeamKick)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
async def wrong_event(event: Text) -> None:
    """Not what it is registered for."""


@other.on(TeamKick)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
async def wrong_event_and_handling(event: Text, handling: HandlerContext) -> None:
    """Not what it is registered for."""


@other.on(Message)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def too_special(event: Text) -> None:
    """Some messages are no texts."""


@other.on(Text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def too_much(event: Text, handling: HandlerContext, more: str) -> None:
    """Nobody has a third argument for it."""


@other.on(str)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def no_event(event: str) -> None:
    """No class of events."""


@other.fallback  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
async def too_special_a_fallback(event: Text) -> None:
    """The fallback gets anything."""


@other.on(Text, conv_type=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def no_conv_type(event: Text) -> None:
    """No kind of conversation."""


async def wrong_argument(event: Text) -> None:
    await kicked(event)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
