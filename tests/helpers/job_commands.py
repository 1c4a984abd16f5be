"""What the tests of the commands for jobs share: groups of an emulator, files of rows, and readings of what was printed."""

import csv
import io
import shlex
from pathlib import Path

import anyio

from rbim import AsyncClient, Credentials
from rbim.operations.groups import GroupType, InviteJoinGroup

ACCOUNTS = ["total", "invited", "refused", "failed", "unknown", "skipped", "duplicate"]
STRANGER = "stranger"
CREDENTIALS = Credentials(app_id="app", app_token="the-token")


def made_group(emulator, name="x"):
    async def create():
        own = {"credentials": emulator.credentials, "user_name": "admin", "transport": emulator}
        async with AsyncClient(base_url="http://emulator", **own) as client:
            return await client.groups.create(name=name, type=GroupType.VIP)

    return anyio.run(create).group_id


def members(platform, group):
    return set(platform.state.groups[group].members) - {"admin"}


def rows_of(*groups, count=7, prefix="u"):
    return [(group, f"{prefix}{number}") for number in range(count) for group in groups]


def write_csv(path, rows, header=("group", "account")):
    with Path(path).open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def rows_in(path):
    return list(csv.DictReader(io.StringIO(Path(path).read_bytes().decode())))


def commands(err):
    return [shlex.split(line)[1:] for line in err.splitlines() if line.startswith("rbim ")]


def invitations(platform):
    return platform.requests.of(InviteJoinGroup)
