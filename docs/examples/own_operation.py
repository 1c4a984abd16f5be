# ruff: noqa: ANN201, D103, INP001, T201  # an example, as short as it can be
"""An operation of your own, its method of the client, and its rule in the emulator. Name and fields are invented."""

import anyio
from attrs import field, frozen

from rbim import AsyncClient, GroupOperation, GroupType, Role
from rbim.emulator import Emulator
from rbim.emulator.platform.rules import RULES, World
from rbim.operations import Answer, Method, Namespace, Repeat, operation, text, wire


@frozen(kw_only=True)
class Member(Answer):
    """One member of a group."""

    account: str = ""
    role: Role | str | None = None  # text if the value is unknown


@frozen(kw_only=True)
class MembersFound(Answer):
    """The members of a group."""

    members: tuple[Member, ...] = field(default=(), metadata=wire(nest="member"))


@operation("QueryGroupMembers", repeat=Repeat.SAFE)
@frozen(kw_only=True)
class QueryGroupMembers(GroupOperation[MembersFound]):
    """List a group's members."""

    group_id: str = field(validator=text())


class Members(Namespace):
    """Queries about members."""

    query = Method(QueryGroupMembers)


def query_members(world: World, op: QueryGroupMembers) -> MembersFound:
    group = world.group(op.group_id)  # or NotFound
    members = [Member(account=account, role=role) for account, role in group.members.items()]
    return MembersFound(members=tuple(members))


RULES[QueryGroupMembers] = query_members


async def main():
    emulator = Emulator()
    async with AsyncClient(base_url="http://emulator", credentials=emulator.credentials, transport=emulator) as client:
        group = await client.groups.create(name="公告", type=GroupType.TEMPORARY)
        await client.groups.invite(group_id=group.group_id, members=["1001"])
        found = await client.members.query(group_id=group.group_id)
        print([(each.account, each.role) for each in found.members])


anyio.run(main)
