"""Changes of the platform that no described operation makes: answers to invitations and requests to join, first logins.

The platform's applications make them somehow ("The operation by which an invitee confirms or declines an invitation: not
shown"). Everything here is emulator-only, for tests and for use by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rbim.codes import FULL
from rbim.emulator.platform.rules import Refusal
from rbim.operations.call_tasks import Hours, NoCallPolicy, default_no_call_policies

if TYPE_CHECKING:
    from datetime import datetime

    from rbim.emulator.platform.rules import World
    from rbim.emulator.platform.state import Group, Task

__all__ = ["Membership"]


class Membership:
    """The part of the emulator that answers invitations and requests to join, and knows when tasks may call."""

    world: World

    def confirm(self, group_id: str, account: str) -> None:
        """Accept an invitation: the invited account becomes a member. Emulator-only: no operation does this.

        Raises LookupError if no invitation waits, and :class:`~rbim.emulator.Refusal` if the group is full (the invitation
        then keeps waiting). Interface: InviteJoinGroup, ``confirm``.
        """
        group = self._waiting(group_id, account, "invitation")
        self._admit(group, account)
        self.world.record_change("confirm", group, account, account)

    def decline(self, group_id: str, account: str) -> None:
        """Decline an invitation on behalf of the invited account. Emulator-only: no operation does this.

        Raises LookupError if no invitation waits. Interface: InviteJoinGroup, ``confirm``.
        """
        group = self._waiting(group_id, account, "invitation")
        del group.invited[account]
        self.world.record_change("decline", group, account, account)

    def approve(self, group_id: str, account: str) -> None:
        """Approve a request to join on behalf of the group's owner. Emulator-only: no operation does this.

        Raises LookupError if no request waits, and :class:`~rbim.emulator.Refusal` if the group is full (the request then
        keeps waiting). Interface: Group, ``permission`` 1.
        """
        group = self._waiting(group_id, account, "request to join")
        self._admit(group, account)
        self.world.record_change("approve", group, group.owner, account)

    def reject(self, group_id: str, account: str) -> None:
        """Reject a request to join on behalf of the group's owner. Emulator-only: no operation does this.

        Raises LookupError if no request waits. Interface: Group, ``permission`` 1.
        """
        group = self._waiting(group_id, account, "request to join")
        del group.applied[account]
        self.world.record_change("reject", group, group.owner, account)

    def log_in(self, account: str) -> None:
        """Log an account in from a client for the first time, so that it can be invited. Emulator-only.

        Raises LookupError if it has logged in before. Interface: States, rule 4.
        """
        state = self.world.state
        if state.has_logged_in(account):
            _not_found(f"{account} has logged in before: a first login is not possible")
        state.never_logged_in.discard(account)
        if state.known is not None:
            state.known.add(account)

    def may_call(self, task_id: str) -> bool:
        """Return whether a task may call now, by the emulator's clock in the dialect's zone. Emulator-only.

        It may from the first second of its start date to the last of its end date, outside every no-call policy. A task
        without ``call_policy`` has the default ones, 00:00:00 to 09:00:00 and 21:00:00 to 23:59:59. The dialect decides
        whether that is so (``default_policies_apply``, ``empty_policy_is_none``), whether 09:00:00 is still forbidden
        (``hours_include_end``), and on which days hours are (``day_policy_repeats``). Raises LookupError if there is no such
        task. Interface: Outbound-call task.
        """
        task = self.world.state.tasks.get(task_id)
        if task is None:
            _not_found(f"there is no task {task_id}")
        request = task.request
        moment = self.world.clock.now().astimezone(self.world.dialect.zone)
        if not request.start_date <= moment.date() <= request.end_date:
            return False
        if request.no_call_policies:
            certain_first = sorted(request.no_call_policies, key=lambda policy: isinstance(policy.period, Hours))
            return not any(self._forbids(policy, moment, task) for policy in certain_first)
        if not any(self._covers(policy, moment) for policy in default_no_call_policies()):
            return True
        if request.call_policy is not None and self.world.choice("empty_policy_is_none"):
            return True
        return not self.world.choice("default_policies_apply")

    def _forbids(self, policy: NoCallPolicy, moment: datetime, task: Task) -> bool:
        if not self._covers(policy, moment):
            return False
        created = task.created.astimezone(self.world.dialect.zone).date()
        if not isinstance(policy.period, Hours) or moment.date() == created:
            return True
        return bool(self.world.choice("day_policy_repeats"))

    def _covers(self, policy: NoCallPolicy, moment: datetime) -> bool:
        period = policy.period
        if isinstance(period, Hours) and moment.time().replace(microsecond=0) == period.end:
            return bool(self.world.choice("hours_include_end"))
        return period.covers(moment)

    def _admit(self, group: Group, account: str) -> None:
        if self.world.places(group) < 1:
            raise Refusal(f"{group.group_id} is full", code=FULL)
        group.admit(account)

    def _waiting(self, group_id: str, account: str, kind: str) -> Group:
        """Return the group in which an invitation or a request to join of the account waits."""
        group = self.world.state.groups.get(group_id)
        if group is None:
            _not_found(f"there is no group {group_id}")
        if account not in (group.invited if kind == "invitation" else group.applied):
            _not_found(f"no {kind} of {account} waits in {group_id}")
        return group


def _not_found(reason: str) -> NoReturn:
    raise LookupError(reason)
