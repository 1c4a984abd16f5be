"""What is said on the emulated platform, and where it is copied to.

The interface has no operation for either: its users talk through their own clients, and a copy address is set in a console.
Everything here is the emulator's own, for tests and second screens.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from rbim.callbacks.events.enums import ConvType, Notice
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.targets import Destination, parts_of, sender_to
from rbim.emulator.platform.rules import Refusal
from rbim.errors import InvalidRequest, NotMember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from rbim.clock import Clock
    from rbim.emulator.copies.copier import Copier
    from rbim.emulator.copies.messages import Extras, PushExtras
    from rbim.emulator.copies.targets import Target
    from rbim.emulator.platform.rules import World
    from rbim.emulator.platform.state import Group
    from rbim.http import Transport
    from rbim.validators import Accounts

__all__ = ["CONCURRENCY", "PATIENCE", "Messaging", "Mode"]

CONCURRENCY = 10
PATIENCE = 5.0

Mode = Literal["normal", "high-guarantee"]

_GROUP_ID = re.compile("g8[0-9]{13}")  # as State.new_group_id makes them


class Messaging:
    """The part of the emulator that talks, and that has copied what is said. See :mod:`rbim.emulator.copies`."""

    world: World
    clock: Clock
    copier: Copier

    def copy_to(
        self,
        target: Target | None,
        mode: Mode = "normal",
        *,
        concurrency: int = CONCURRENCY,
        patience: float = PATIENCE,
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        """Copy what is said and what happens to groups from now on to ``target``; None: no more, and what waits is dropped.

        ``target`` is a URL, an object with ``async receive(headers, body)`` that answers with a ``status``, or such a
        function that returns the status. ``mode`` is ``"normal"`` or ``"high-guarantee"`` (Delivery rules, 2). At most
        ``concurrency`` deliveries are under way at once (default 10). ``patience`` is how many seconds of real time a
        receiver may work on before an emulated clock goes on without it (default 5). ``transport`` makes what carries
        deliveries to a URL, an ``HttpxTransport`` without the environment's proxies unless told.

        Raises InvalidRequest for what cannot be a target, a mode or a bound.
        """
        if mode not in get_args(Mode):
            raise InvalidRequest(f"mode: {mode!r} is none of {', '.join(get_args(Mode))}", field="mode")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency: at least 1, not {concurrency}", field="concurrency", limit=1)
        if target is None:
            self.copier.dispatch.aim = None
            return
        if isinstance(target, str):
            parts_of(target)
        else:
            sender_to(target)
        if mode == "high-guarantee":
            self.world.choice("resend_after")
        self.copier.dispatch.aim = Destination(
            target=target,
            high=mode == "high-guarantee",
            concurrency=concurrency,
            patience=patience,
            transport=transport or _over_httpx,
        )

    def say(self, sender: str, to: str, text: str | None = None, **extras: Unpack[Extras]) -> str:
        """Let an account say something to another (PERSON) or in a group it is in (TEAM); return the message's id.

        ``to`` is a group where the emulator knows a group of this id, an account otherwise. What else can be said of the
        message: :class:`~rbim.emulator.copies.messages.Extras`. Where no target is configured it is said, and not copied.

        Raises InvalidRequest for what cannot be in a message, LookupError for a group that is no more, and
        :class:`~rbim.emulator.Refusal` where the sender is not in the group or has never logged in from a client.
        """
        group = self._group(to)
        if not self.world.state.has_logged_in(sender):
            raise Refusal(f"{sender} has never logged in from a client: it has nothing to say it with", kind=NotMember)
        if group is None:
            return self.copier.send(CopiedMessage(conv_type=ConvType.PERSON, to=to, sender=sender, text=text, **extras))
        if sender not in group.members:
            raise Refusal(f"{sender} is not in {to}: only members talk there", kind=NotMember)
        others = [account for account in group.members if account != sender]
        return self.copier.send(
            CopiedMessage(conv_type=ConvType.TEAM, to=to, sender=sender, text=text, members=others, **extras),
        )

    def push(
        self, to: str | Accounts, text: str | None = None, *, sender: str | None = None, **extras: Unpack[PushExtras]
    ) -> str:
        """Push a message over REST to one account or several (CUSTOM_PERSON), or to a group (CUSTOM_TEAM); return its id.

        ``sender`` is the administrator unless told, and need not be in the group. What else can be said of the message:
        :class:`~rbim.emulator.copies.messages.PushExtras`. Raises as :meth:`say` does.
        """
        group = self._group(to) if isinstance(to, str) else None
        receivers = group.members if group is not None else [to] if isinstance(to, str) else to
        return self.copier.send(
            CopiedMessage(
                conv_type=ConvType.CUSTOM_PERSON if group is None else ConvType.CUSTOM_TEAM,
                to="REST" if group is None else group.group_id,
                sender=self.world.actor(sender),
                text=text,
                members=receivers,
                **extras,
            )
        )

    def notify(
        self,
        group_id: str,
        notice: Notice | str,
        members: Accounts = (),
        *,
        actor: str | None = None,
        text: str | None = None,
    ) -> str:
        """Send a notification to a group (NOTIFY_TEAM) although nothing has happened to it; return its id.

        For what no operation causes, such as ``TEAM_MEMBER_UPDATE``. ``members`` are those whom it concerns, ``actor`` is
        the administrator unless told. The group need not exist. Raises InvalidRequest for an unknown ``notice``.
        """
        if notice not in list(Notice):
            raise InvalidRequest(f"notice: {notice!r} is none of {', '.join(Notice)}", field="notice")
        return self.copier.send(
            CopiedMessage(
                conv_type=ConvType.NOTIFY_TEAM,
                to=group_id,
                sender=self.world.actor(actor),
                msg_type=notice,
                text=text,
                members=members or None,
            )
        )

    def copy_raw(self, body: Mapping[str, Any] | bytes, *, key: str = "") -> None:
        """Have a body of one's own signed and delivered: a kind that is not described, an empty probe, junk.

        It is delivered in the order of the conversation ``key``. Bytes go out as they stand.
        """
        self.copier.send_raw(body, key)

    async def deliver(self) -> None:
        """Deliver what is due now, and what becomes due thereby; what is to be resent later goes on waiting."""
        async with self.copying():
            pass

    async def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Let time pass on the emulator's clock and fire what falls due, resends among it, each at its own time.

        Raises TypeError where the clock is none that can be told to go on.
        """
        if not isinstance(self.clock, EmulatedClock):
            raise TypeError(f"time passes by itself on a {type(self.clock).__name__}: give the emulator an EmulatedClock")
        await self.copier.dispatch.advance(self.clock, seconds + hours * 3600)

    def copying(self) -> AbstractAsyncContextManager[None]:
        """Deliver as things happen, while the block runs: for servers. At its end, deliver what is due then.

        In the event loop in which the emulator is served. An error in the block, or its cancellation, cuts deliveries off;
        they wait for the next time.
        """
        return self.copier.dispatch.running()

    def _group(self, to: str) -> Group | None:
        group = self.world.state.groups.get(to)
        if group is None and _GROUP_ID.fullmatch(to):
            _nothing(f"there is no group {to}")
        return group


def _over_httpx() -> Transport:
    from rbim.transports.httpx import HttpxTransport

    return HttpxTransport(trust_env=False)


def _nothing(reason: str) -> NoReturn:
    raise LookupError(reason)
