"""Changes of the platform that no described operation makes: answers to invitations and requests to join, first logins.

The platform's applications make them somehow ("The operation by which an invitee confirms or declines an invitation: not
shown"). Everything here is emulator-only, for tests and for use by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rbim.emulator.platform.rules import FULL, Refusal

if TYPE_CHECKING:
    from rbim.emulator.platform.rules import World
    from rbim.emulator.platform.state import Group

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
        _admit(group, account)
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
        _admit(group, account)
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

        It may from the first second of its start date to the last of its end date, outside every no-call policy. A policy of
        hours includes its last second, so that the default one forbids 09:00:00 and allows 09:00:01; this is a guess, the
        interface does not say. Raises LookupError if there is no such task. Interface: Outbound-call task.
        """
        task = self.world.state.tasks.get(task_id)
        if task is None:
            _not_found(f"there is no task {task_id}")
        request = task.request
        moment = self.world.clock.now().astimezone(self.world.dialect.zone)
        return request.start_date <= moment.date() <= request.end_date and not any(
            policy.period.covers(moment) for policy in request.call_policy
        )

    def _waiting(self, group_id: str, account: str, kind: str) -> Group:
        """Return the group in which an invitation or a request to join of the account waits."""
        group = self.world.state.groups.get(group_id)
        if group is None:
            _not_found(f"there is no group {group_id}")
        if account not in (group.invited if kind == "invitation" else group.applied):
            _not_found(f"no {kind} of {account} waits in {group_id}")
        return group


def _admit(group: Group, account: str) -> None:
    if group.is_full:
        raise Refusal(f"{group.group_id} is full", code=FULL)
    group.admit(account)


def _not_found(reason: str) -> NoReturn:
    raise LookupError(reason)
