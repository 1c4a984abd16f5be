"""Messages on the emulated platform, and where they are copied to.

The interface has no operation for either: users talk through their own clients, and a copy address is set in a console.
Everything here is emulator-only, for tests and for use by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from rbim.callbacks.events import ConvType, Notice
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.targets import Destination, sender_to, split_url
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

_GROUP_ID = re.compile("g8[0-9]{13}")  # the form of State.new_group_id


class Messaging:
    """The part of the emulator that sends messages and has them copied. See :mod:`rbim.emulator.copies.copier`."""

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
        """Copy messages and changes of groups to ``target`` from now on; None: stop, and drop the ones that wait.

        ``target`` is a URL, an object with ``async receive(headers, body)`` that returns something with a ``status``, or an
        async function of headers and body that returns the status. ``mode`` is ``"normal"`` or ``"high-guarantee"``
        (Delivery rules, 2). At most ``concurrency`` deliveries are in progress at once (default: 10). ``patience`` is how
        many seconds of real time a receiver may take before an emulated clock advances without it (default: 5).
        ``transport`` makes the transport for deliveries to a URL (default: an ``HttpxTransport`` that ignores the
        environment's proxies). By default each delivery in normal mode has a connection of its own: it is sent once, and
        would be lost over a kept connection that the receiver, or a proxy in front of it, is just closing.

        Raises InvalidRequest for an invalid target, mode or concurrency.
        """
        if mode not in get_args(Mode):
            raise InvalidRequest(f"mode: {mode!r} is not one of {', '.join(get_args(Mode))}", field="mode")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency: must be at least 1, not {concurrency}", field="concurrency", limit=1)
        if target is None:
            self.copier.dispatch.destination = None
            return
        if isinstance(target, str):
            split_url(target)
        else:
            sender_to(target)
        if mode == "high-guarantee":
            self.world.choice("resend_after")
        self.copier.dispatch.destination = Destination(
            target=target,
            high=mode == "high-guarantee",
            concurrency=concurrency,
            patience=patience,
            transport=transport or (_kept if mode == "high-guarantee" else _unkept),
        )

    def say(self, sender: str, to: str, text: str | None = None, **extras: Unpack[Extras]) -> str:
        """Send a message from an account to another (PERSON) or to a group it is in (TEAM); return its id.

        ``to`` is a group if the emulator has a group of this id, an account otherwise. For the other fields see
        :class:`~rbim.emulator.copies.messages.Extras`. Without a target the message is not copied.

        Raises InvalidRequest for invalid fields, LookupError for the id of a group that does not exist, and
        :class:`~rbim.emulator.Refusal` if the sender is not in the group or has never logged in from a client.
        """
        group = self._group(to)
        if not self.world.state.has_logged_in(sender):
            raise Refusal(f"{sender} has never logged in from a client: it cannot send a message", kind=NotMember)
        if group is None:
            return self.copier.send(CopiedMessage(conv_type=ConvType.PERSON, to=to, sender=sender, text=text, **extras))
        if sender not in group.members:
            raise Refusal(f"{sender} is not in {to}: only members can send to a group", kind=NotMember)
        if self.copier.dispatch.destination is not None:
            # tMembers: the other members, since the sender has a field of its own (Conversation message event body; G)
            self.world.assume("team_members_list_sender")
        members = [account for account in group.members if account != sender]
        return self.copier.send(
            CopiedMessage(conv_type=ConvType.TEAM, to=to, sender=sender, text=text, members=members, **extras),
        )

    def push(
        self, to: str | Accounts, text: str | None = None, *, sender: str | None = None, **extras: Unpack[PushExtras]
    ) -> str:
        """Push a message over REST to one account or several (CUSTOM_PERSON), or to a group (CUSTOM_TEAM); return its id.

        ``sender`` need not be in the group (default: the administrator). For the other fields see
        :class:`~rbim.emulator.copies.messages.PushExtras`. Raises InvalidRequest and LookupError as :meth:`say` does.
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
        """Send a notification to a group (NOTIFY_TEAM) without a change of the group; return its id.

        Use it for notifications that no operation causes, such as ``TEAM_MEMBER_UPDATE``. ``members`` are the accounts that
        it concerns, ``actor`` is the account that acts (default: the administrator). The group need not exist. Raises
        InvalidRequest for an unknown ``notice``.
        """
        if notice not in list(Notice):
            raise InvalidRequest(f"notice: {notice!r} is not one of {', '.join(Notice)}", field="notice")
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
        """Sign and deliver a body as given: an event that is not described, an empty probe, invalid JSON.

        It is delivered in the order of the conversation ``key``. Bytes are sent unchanged.
        """
        self.copier.send_raw(body, key)

    def send_again(self, number: int) -> None:
        """Deliver a message again that was delivered before, by its ``number`` in the log, with ``resendFlag`` 1.

        The faults of its first delivery do not apply. Without a target nothing is delivered. Raises LookupError if the log
        has no delivery of it.
        """
        self.copier.send_again(number)

    async def deliver(self) -> None:
        """Deliver all that is due now, and all that becomes due as a result; later resends keep waiting."""
        async with self.copying():
            pass

    async def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Advance the emulator's clock and deliver what falls due, resends included, each at its own time.

        Raises TypeError if the clock is not an :class:`~rbim.emulator.EmulatedClock`.
        """
        if not isinstance(self.clock, EmulatedClock):
            raise TypeError(f"a {type(self.clock).__name__} cannot be advanced: give the emulator an EmulatedClock")
        await self.copier.dispatch.advance(self.clock, seconds + hours * 3600)

    def copying(self) -> AbstractAsyncContextManager[None]:
        """Deliver each message as it is sent while the block runs, and at its end all that is due then. For servers.

        Enter it in the event loop in which the emulator is served. An error in the block, or its cancellation, interrupts
        deliveries; they then wait for the next block or :meth:`deliver`.
        """
        return self.copier.dispatch.running()

    def _group(self, to: str) -> Group | None:
        group = self.world.state.groups.get(to)
        if group is None and _GROUP_ID.fullmatch(to):
            _not_found(f"there is no group {to}")
        return group


def _kept() -> Transport:
    from rbim.transports.httpx import HttpxTransport

    return HttpxTransport(trust_env=False)


def _unkept() -> Transport:
    from rbim.transports.httpx import HttpxTransport

    return HttpxTransport(trust_env=False, keepalive_expiry=0)


def _not_found(reason: str) -> NoReturn:
    raise LookupError(reason)
