"""The emulator: one platform state behind a transport, an ASGI application and direct calls."""

from __future__ import annotations

import re
import secrets
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, get_args

from anyio.lowlevel import checkpoint

from rbim.callbacks.events import ConvType, Notice
from rbim.clock import SystemClock
from rbim.codes import FULL
from rbim.credentials import Credentials
from rbim.dialect import Dialect
from rbim.emulator.asgi import EmulatorApp
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.copier import Copier
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.targets import Destination, sender_to, split_url
from rbim.emulator.documents import one_of
from rbim.emulator.faults import Faults
from rbim.emulator.logs import RequestLog
from rbim.emulator.platform.rules import Refusal, World
from rbim.emulator.platform.service import Platform
from rbim.emulator.platform.state import State, export_state, load_state, replace_state
from rbim.emulator.rules import Rules
from rbim.errors import InvalidRequest, NotMember, NotSent, Unanswered
from rbim.operations.call_tasks import Hours, NoCallPolicy, default_no_call_policies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self, Unpack

    from rbim.clock import Clock
    from rbim.emulator.copies.messages import Extras, PushExtras
    from rbim.emulator.copies.targets import Target
    from rbim.emulator.platform.state import Group
    from rbim.http import Request, Response, Transport
    from rbim.validators import Accounts

__all__ = ["Emulator", "Mode"]

Mode = Literal["normal", "high-guarantee"]

_GROUP_ID = re.compile("g8[0-9]{13}")  # the form of State.new_group_id


class Emulator:
    """An emulator of the described platform.

    Pass it to a client as ``transport=``, or serve its ``asgi``, an ASGI 3 application, over HTTP.

    ``credentials`` are those of the only application it knows (default: random ones; ``own_credentials`` is then True).
    ``dialect`` and ``clock`` are as for the client. ``rules`` are the emulator's own choices (default: ``Rules()``).
    ``administrator`` is the account that acts when a request names no account. ``accounts`` are those that have logged in
    before (default: all; :meth:`never_logged_in` excludes some). ``seed`` determines all random choices of its faults.

    With ``check_roles`` an operation is refused to members without the role for it, by the rules' ``allowed_roles``
    (default: no check, because the description does not say which roles may do what). With ``strict_dialect`` a request
    whose effect the description leaves open raises :class:`~rbim.emulator.DependsOnDialect`. That does not apply
    to the form of requests (versions, shapes, limits, zone) as long as it is the dialect's, to which code means what, or to
    what answers show of a private group.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        credentials: Credentials | None = None,
        dialect: Dialect | None = None,
        rules: Rules | None = None,
        clock: Clock | None = None,
        administrator: str = "admin",
        accounts: Iterable[str] | None = None,
        check_roles: bool = False,
        strict_dialect: bool = False,
        seed: int = 0,
    ) -> None:
        self.own_credentials = credentials is None
        self.credentials = credentials or Credentials(app_id=secrets.token_hex(16), app_token=secrets.token_hex(16))
        self.dialect = dialect or Dialect()
        self.rules = rules or Rules()
        self.clock = clock or SystemClock()
        self.state = State(known=None if accounts is None else set(accounts))
        self.faults = Faults(self.clock, seed)
        self.requests = RequestLog()
        self.world = World(
            state=self.state,
            dialect=self.dialect,
            rules=self.rules,
            clock=self.clock,
            administrator=administrator,
            check_roles=check_roles,
            strict=strict_dialect,
        )
        self.copier = Copier(self.world, self.credentials, seed)
        self.deliveries = self.copier.deliveries
        self.copy_faults = self.copier.faults
        self.platform = Platform(self.world, self.credentials, self.faults, self.requests)
        self.asgi = EmulatorApp(self.platform, self.clock)

    def never_logged_in(self, *accounts: str) -> None:
        """Mark accounts as never logged in, so that invitations refuse them.

        Interface: "An invited member must be a user who has already logged in".
        """
        self.state.never_logged_in.update(accounts)

    def change_token(self, app_token: str) -> Credentials:
        """Give the application another token at once, as its console may, and return the new ``credentials``.

        Requests that are signed with the token before are refused from now on, and copies are signed with the new one.
        """
        self.credentials = Credentials(app_id=self.credentials.app_id, app_token=app_token)
        self.platform.credentials = self.copier.credentials = self.credentials
        return self.credentials

    def snapshot(self) -> State:
        """Return a copy of the state, to :meth:`restore` it or to compare it."""
        return deepcopy(self.state)

    def restore(self, snapshot: State) -> None:
        """Set the state back to a snapshot.

        A snapshot can be restored many times, and into other emulators. Request log, faults and clock do not change. Groups
        and tasks are new objects afterwards: look them up again.
        """
        replace_state(self.state, deepcopy(snapshot))

    def export(self) -> dict[str, Any]:
        """Return the whole state as a document for ``json.dumps``, with a ``version``."""
        return export_state(self.state)

    def load(self, document: object) -> None:
        """Replace the state by a document of :meth:`export`.

        Raises InvalidRequest that names the wrong fields; the state then does not change.
        """
        load_state(self.state, document, self.rules)

    # The emulator as a transport.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # a transport enforces it
        """Answer a client's request without a socket, with the faults of the plan. ``timeout`` is in seconds.

        Raises NotSent or Unanswered, as a transport over a network would.
        """
        if timeout <= 0:
            raise NotSent(f"no time is left for the request (the time-out is {timeout:g} s)")
        answer = self.platform.serve(request.method, request.path, request.query, request.headers, request.body)
        injection = answer.injection
        if injection.refuse:
            raise NotSent("connection refused")
        wait = injection.delay + injection.body_time
        if wait > timeout:
            await self.clock.sleep(timeout)
            raise Unanswered(f"no complete response within {timeout:g} s")
        await (self.clock.sleep(wait) if wait else checkpoint())
        if injection.reset_before or injection.reset_after or injection.keep is not None:
            raise Unanswered("the response was cut short" if injection.keep is not None else "connection reset")
        return answer.response

    # Changes of the platform that no described operation makes: answers to invitations and requests to join, first logins.
    #
    # The platform's applications make them somehow ("The operation by which an invitee confirms or declines an invitation:
    # not shown"). All that follows is emulator-only, for tests and for use by hand.

    def confirm(self, group_id: str, account: str) -> None:
        """Accept an invitation: the invited account becomes a member. Emulator-only: no operation does this.

        Raises LookupError if no invitation waits, and :class:`~rbim.emulator.Refusal` if the group is full (the invitation
        then keeps waiting). Interface: InviteJoinGroup, ``confirm``.
        """
        self._decide("confirm", group_id, account)

    def decline(self, group_id: str, account: str) -> None:
        """Decline an invitation on behalf of the invited account. Emulator-only: no operation does this.

        Raises LookupError if no invitation waits. Interface: InviteJoinGroup, ``confirm``.
        """
        self._decide("decline", group_id, account)

    def approve(self, group_id: str, account: str) -> None:
        """Approve a request to join on behalf of the group's owner. Emulator-only: no operation does this.

        Raises LookupError if no request waits, and :class:`~rbim.emulator.Refusal` if the group is full (the request then
        keeps waiting). Interface: Group, ``permission`` 1.
        """
        self._decide("approve", group_id, account)

    def reject(self, group_id: str, account: str) -> None:
        """Reject a request to join on behalf of the group's owner. Emulator-only: no operation does this.

        Raises LookupError if no request waits. Interface: Group, ``permission`` 1.
        """
        self._decide("reject", group_id, account)

    def _decide(self, decision: Literal["confirm", "decline", "approve", "reject"], group_id: str, account: str) -> None:
        group = self._group(group_id)
        if group is None:
            raise LookupError(f"there is no group {group_id}")
        invited = decision in {"confirm", "decline"}
        waiting = group.invited if invited else group.applied
        if account not in waiting:
            raise LookupError(f"no {'invitation' if invited else 'request to join'} of {account} waits in {group_id}")
        if decision in {"decline", "reject"}:
            del waiting[account]
        elif self.world.places(group) < 1:
            raise Refusal(f"{group_id} is full", code=FULL)
        else:
            group.admit(account)
        self.world.record_change(decision, group, account if invited else group.owner, account)

    def log_in(self, account: str) -> None:
        """Log an account in from a client for the first time, so that it can be invited. Emulator-only.

        Raises LookupError if it has logged in before. Interface: States, rule 4.
        """
        state = self.world.state
        if state.has_logged_in(account):
            raise LookupError(f"{account} has logged in before: a first login is not possible")
        state.never_logged_in.discard(account)
        if state.known is not None:
            state.known.add(account)

    def may_call(self, task_id: str) -> bool:
        """Return whether a task may call now, by the emulator's clock in the dialect's zone. Emulator-only.

        It may from the first second of its start date to the last of its end date, outside every no-call policy. A task
        without ``call_policy`` has the default ones, 00:00:00 to 09:00:00 and 21:00:00 to 23:59:59. The rule
        ``default_policies_apply`` decides whether that is so. Hours include their last second, and those of type 0 are of
        every day. Raises LookupError if there is no such task. Interface: Outbound-call task.
        """
        task = self.world.state.tasks.get(task_id)
        if task is None:
            raise LookupError(f"there is no task {task_id}")
        request = task.request
        moment = self.world.clock.now().astimezone(self.world.dialect.zone)
        if not request.start_date <= moment.date() <= request.end_date:
            return False
        if request.no_call_policies:
            certain_first = sorted(request.no_call_policies, key=lambda policy: isinstance(policy.period, Hours))
            forbids = next((policy for policy in certain_first if self._covers(policy, moment)), None)
            created = task.created.astimezone(self.world.dialect.zone).date()
            if forbids is not None and isinstance(forbids.period, Hours) and moment.date() != created:
                # the hours of "the current day" are of every day (Outbound-call task; G)
                self.world.assume("day_policy_repeats")
            return forbids is None
        if not any(self._covers(policy, moment) for policy in default_no_call_policies()):
            return True
        if request.call_policy is not None:
            self.world.assume("empty_policy_is_none")  # a list without policies forbids no time (Outbound-call task; G)
            return True
        return not self.world.choice("default_policies_apply")

    def _covers(self, policy: NoCallPolicy, moment: datetime) -> bool:
        period = policy.period
        if isinstance(period, Hours) and moment.time().replace(microsecond=0) == period.end:
            self.world.assume("hours_include_end")  # the default night ends at 23:59:59 (Outbound-call task; G)
            return True
        return period.covers(moment)

    # Messages, and where they are copied to. Users talk through their own clients, and a copy address is set in a console.

    def copy_to(
        self,
        target: Target | None,
        mode: Mode = "normal",
        *,
        concurrency: int = 10,
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        """Copy messages and changes of groups to ``target`` from now on; None: stop, and drop the ones that wait.

        ``target`` is a URL, an object with ``async receive(headers, body)`` that returns something with a ``status``, or an
        async function of headers and body that returns the status. ``mode`` is ``"normal"`` or ``"high-guarantee"``
        (Delivery rules, 2). At most ``concurrency`` deliveries are in progress at once (default: 10). ``transport`` makes
        the transport for deliveries to a URL (default: an ``HttpxTransport`` that ignores the environment's proxies). By
        default each delivery in normal mode has a connection of its own: it is sent once, and would be lost over a kept
        connection that the receiver, or a proxy in front of it, is just closing.

        Raises InvalidRequest for an invalid target, mode or concurrency.
        """
        one_of(mode, get_args(Mode), "mode")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency: must be at least 1, not {concurrency}", field="concurrency", limit=1)
        if target is None:
            self.copier.copy_to(None)
            return
        if isinstance(target, str):
            split_url(target)
        else:
            sender_to(target)
        if mode == "high-guarantee":
            self.world.choice("resend_after")
        self.copier.copy_to(
            Destination(target=target, high=mode == "high-guarantee", concurrency=concurrency, transport=transport)
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
        if self.copier.destination is not None:
            # tMembers: the other members, since the sender has a field of its own (Conversation message event body; G)
            self.world.assume("team_members_list_sender")
        members = [account for account in group.members if account != sender]
        return self.copier.send(
            CopiedMessage(conv_type=ConvType.TEAM, to=to, sender=sender, text=text, members=members, **extras)
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
        one_of(notice, Notice, "notice")
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
        await self.copier.advance(self.clock, seconds + hours * 3600)

    def copying(self) -> AbstractAsyncContextManager[None]:
        """Deliver each message as it is sent while the block runs, and at its end all that is due then. For servers.

        Enter it in the event loop in which the emulator is served. An error in the block, or its cancellation, interrupts
        deliveries; they then wait for the next block or :meth:`deliver`.
        """
        return self.copier.running()

    def _group(self, to: str) -> Group | None:
        group = self.world.state.groups.get(to)
        if group is None and _GROUP_ID.fullmatch(to):
            raise LookupError(f"there is no group {to}")
        return group
