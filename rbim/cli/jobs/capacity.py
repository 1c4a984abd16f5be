"""Warnings of a dry run: groups that are missing, full, or too small for their accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from rbim.client.fan_out import Done, fan_out
from rbim.errors import AuthenticationError, NotFound, Outcome
from rbim.operations.groups import GroupType, QueryGroupDetail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.client.client import AsyncClient
    from rbim.errors import RbimError
    from rbim.operations.groups import GroupDetail

__all__ = ["GroupWarning", "checked_groups", "too_large"]

MOST = max(kind.member_limit for kind in GroupType)


class GroupWarning(NamedTuple):
    """A group that cannot take its accounts: how many there are, the free places (None: unknown), and the cause."""

    group: str
    accounts: int
    places: int | None
    cause: str


def too_large(sizes: Mapping[str, int]) -> list[GroupWarning]:
    """Return a warning for each group with more accounts than any group can hold."""
    return [
        GroupWarning(group, accounts, None, f"{accounts:,} accounts, but no group holds more than {MOST:,} members")
        for group, accounts in sizes.items()
        if accounts > MOST
    ]


async def checked_groups(client: AsyncClient, sizes: Mapping[str, int]) -> list[GroupWarning]:
    """Ask the platform once for each group, and return a warning for each that cannot take its accounts.

    Raises AuthenticationError, and the error of a group that says nothing about the group: no answer came.
    """
    warnings: dict[str, GroupWarning] = {}
    operations = (QueryGroupDetail(group_id=group) for group in sizes)
    async with client, fan_out(client, operations) as outcomes:
        async for outcome in outcomes:
            group = cast("QueryGroupDetail", outcome.operation).group_id
            if isinstance(outcome, Done):
                found = _warning_of(group, sizes[group], outcome.answer)
            else:
                found = GroupWarning(group, sizes[group], None, _cause(outcome.error))
            if found is not None:
                warnings[group] = found
    return [warnings[group] for group in sizes if group in warnings]


def _cause(error: RbimError) -> str:
    if error.outcome is not Outcome.REFUSED or isinstance(error, AuthenticationError):
        raise error
    return "the platform has no such group" if isinstance(error, NotFound) else f"its details cannot be read: {error}"


def _warning_of(group: str, accounts: int, detail: GroupDetail) -> GroupWarning | None:
    if detail.count is None or not isinstance(detail.type, GroupType):
        return next(iter(too_large({group: accounts})), None)
    limit = detail.type.member_limit
    places = max(0, limit - detail.count)
    if accounts <= places:
        return None
    state = f"{places:,} places are left" if places else "it is full"
    cause = f"{state} ({detail.count:,} of {limit:,} members), for {accounts:,} accounts; members already there need none"
    return GroupWarning(group, accounts, places, cause)
