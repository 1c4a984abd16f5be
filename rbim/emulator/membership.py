"""What the interface has no operation for: answers to invitations and to requests to join, first logins, calling hours.

The platform's applications do these things somehow ("The operation by which an invitee confirms or declines an invitation:
not shown"). Everything here is the emulator's own, for tests and second screens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rbim.emulator.platform.rules import FULL, Refusal

if TYPE_CHECKING:
    from rbim.emulator.platform.rules import World
    from rbim.emulator.platform.state import Group

__all__ = ["Membership"]


class Membership:
    """The part of the emulator that settles what waits in its ``world``."""

    world: World

    def confirm(self, group_id: str, account: str) -> None:
        """Let an invited account accept its invitation and become a member. Emulator-only: no operation does this.

        Raises LookupError where no invitation waits, and :class:`~rbim.emulator.Refusal` where the group is full (the
        invitation then goes on waiting). Interface: InviteJoinGroup, ``confirm``.
        """
        group = self._waiting(group_id, account, "invitation")
        _admit(group, account)
        self.world.happened("confirm", group, account, account)

    def decline(self, group_id: str, account: str) -> None:
        """Let an invited account turn its invitation down. Emulator-only: no operation does this.

        Raises LookupError where no invitation waits. Interface: InviteJoinGroup, ``confirm``.
        """
        group = self._waiting(group_id, account, "invitation")
        del group.invited[account]
        self.world.happened("decline", group, account, account)

    def approve(self, group_id: str, account: str) -> None:
        """Let the group's owner accept a request to join. Emulator-only: no operation does this.

        Raises LookupError where no request waits, and :class:`~rbim.emulator.Refusal` where the group is full (the
        request then goes on waiting). Interface: Group, ``permission`` 1.
        """
        group = self._waiting(group_id, account, "request to join")
        _admit(group, account)
        self.world.happened("approve", group, group.owner, account)

    def reject(self, group_id: str, account: str) -> None:
        """Let the group's owner turn a request to join down. Emulator-only: no operation does this.

        Raises LookupError where no request waits. Interface: Group, ``permission`` 1.
        """
        group = self._waiting(group_id, account, "request to join")
        del group.applied[account]
        self.world.happened("reject", group, group.owner, account)

    def log_in(self, account: str) -> None:
        """Let an account log in from a client for the first time, so that it can be invited. Emulator-only.

        Raises LookupError where it has logged in before. Interface: States, rule 4.
        """
        state = self.world.state
        if state.has_logged_in(account):
            _nothing(f"{account} has logged in before: no first login is to come")
        state.never_logged_in.discard(account)
        if state.known is not None:
            state.known.add(account)

    def may_call(self, task_id: str) -> bool:
        """Tell whether a task may call at this moment: the emulator's clock, in the dialect's zone. Emulator-only.

        It may from the first second of its start date to the last of its end date, outside every no-call policy. A policy
        of hours includes its last second, so that the default one forbids 09:00:00 and allows 09:00:01; the interface does
        not say, this is a guess. Raises LookupError where there is no such task. Interface: Outbound-call task.
        """
        task = self.world.state.tasks.get(task_id)
        if task is None:
            _nothing(f"there is no task {task_id}")
        asked = task.request
        moment = self.world.clock.now().astimezone(self.world.dialect.zone)
        return asked.start_date <= moment.date() <= asked.end_date and not any(
            policy.period.covers(moment) for policy in asked.call_policy
        )

    def _waiting(self, group_id: str, account: str, what: str) -> Group:
        """Return the group in which an invitation of the account, or a request of its to join, waits."""
        group = self.world.state.groups.get(group_id)
        if group is None:
            _nothing(f"there is no group {group_id}")
        if account not in (group.invited if what == "invitation" else group.applied):
            _nothing(f"no {what} of {account} waits in {group_id}")
        return group


def _admit(group: Group, account: str) -> None:
    if group.is_full:
        raise Refusal(f"{group.group_id} is full", code=FULL)
    group.admit(account)


def _nothing(reason: str) -> NoReturn:
    raise LookupError(reason)
