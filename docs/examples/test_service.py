# ruff: noqa: ASYNC109, D102, D103, INP001, PLR2004, S101  # tests assert, and need no docstrings
"""Tests of ``service.py`` with emulators as the platform: two tenants, no account. They need a PostgreSQL.

python -m pip install ".[server,otel]" fastapi asyncpg pytest
DATABASE_URL=postgresql://user@localhost/test python -m pytest test_service.py
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import asyncpg
import pytest
from fastapi.testclient import TestClient
from service import SCHEMA, create_app

from rbim import CreateGroup, InviteJoinGroup, Request, Response
from rbim.callbacks import SqliteInbox
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, ResetAfter, Status

DATABASE = os.environ["DATABASE_URL"]
NORTH, SOUTH = {"X-Tenant": "north", "X-Account": "1000"}, {"X-Tenant": "south", "X-Account": "1000"}


class Platforms:
    """A transport to several emulators, each under an address of its own."""

    def __init__(self) -> None:
        self.of = {f"https://{name}.example": Emulator() for name in ("north", "south")}
        self.north, self.south = self.of.values()

    async def send(self, request: Request, /, *, timeout: float) -> Response:
        return await self.of[request.origin].send(request, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def query(sql: str, *values: object) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(DATABASE)
        try:
            return await connection.fetch(sql, *values)
        finally:
            await connection.close()

    return anyio.run(run)


@pytest.fixture
def platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platforms:
    """Two platforms, and a tenant on each."""
    made = Platforms()
    monkeypatch.setenv("JOBS", str(tmp_path / "jobs"))
    for statement in (*SCHEMA.strip().split(";\n"), "TRUNCATE tenant, copy"):
        query(statement)
    for name, (url, emulator) in zip(("north", "south"), made.of.items(), strict=True):
        own = emulator.credentials
        query("INSERT INTO tenant VALUES ($1, $2, $3, $4, NULL)", name, url, own.app_id, own.app_token.reveal())
    return made


@pytest.fixture
def http(platforms: Platforms, tmp_path: Path) -> Iterator[TestClient]:
    """A client of the running service."""
    with TestClient(create_app(DATABASE, SqliteInbox(tmp_path / "events.db"), platforms)) as http:
        yield http


def new_group(http: TestClient, tenant: dict[str, str]) -> str:
    answer = http.post("/groups", json={"name": "产品公告"}, headers=tenant)
    assert answer.status_code == 201
    return str(answer.json()["group_id"])


def copy_into(http: TestClient, emulator: Emulator) -> None:
    """Let the platform post its copies to the service."""

    async def post(headers: Mapping[str, str], body: bytes) -> int:
        answer = await anyio.to_thread.run_sync(lambda: http.post("/copies", content=body, headers=dict(headers)))
        return answer.status_code

    emulator.copy_to(post)


def stored(count: int) -> list[tuple[str, str]]:
    """Return the tenants and authors of the copies, as soon as there are so many."""
    while len(rows := query("SELECT tenant, author FROM copy ORDER BY tenant, author")) < count:
        pass  # handlers run after the answer
    return [(row["tenant"], row["author"]) for row in rows]


def finished(http: TestClient, job: str) -> dict[str, Any]:
    while (now := http.get(f"/invitations/{job}").json())["phase"] != "ended":
        pass
    return dict(now)


def test_each_tenant_has_its_own_groups(http: TestClient, platforms: Platforms) -> None:
    group = new_group(http, NORTH)
    assert (http.get(f"/groups/{group}", headers=NORTH).json()["owner"], platforms.south.state.groups) == ("1000", {})
    assert http.get(f"/groups/{group}", headers={"X-Tenant": "west"}).status_code == 404


def test_who_cannot_be_invited_is_named(http: TestClient, platforms: Platforms) -> None:
    platforms.north.never_logged_in("1002")
    group = new_group(http, NORTH)
    answer = http.post(f"/groups/{group}/members", json={"accounts": ["1001", "1002"]}, headers=NORTH)
    assert list(answer.json()["refused"]) == ["1002"]


def test_a_lost_answer_is_not_passed_off_as_a_failure(http: TestClient, platforms: Platforms) -> None:
    platforms.north.faults.add(Fault(effect=ResetAfter(), operation=CreateGroup))
    answer = http.post("/groups", json={"name": "产品公告"}, headers=NORTH)
    assert (answer.status_code, answer.json()["outcome"]) == (504, "unknown")
    assert len(platforms.north.requests.of(CreateGroup)) == len(platforms.north.state.groups) == 1


def test_a_platform_that_has_enough_of_one_tenant(http: TestClient, platforms: Platforms) -> None:
    platforms.north.faults.add(Fault(effect=Status(429, retry_after=60)))
    answer = http.get("/groups/g1", headers=NORTH)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60")
    new_group(http, SOUTH)


def test_many_are_invited_in_the_background(http: TestClient, platforms: Platforms) -> None:
    platforms.north.never_logged_in("a7")
    group = new_group(http, NORTH)
    accounts = [f"a{n}" for n in range(120)]
    answer = http.post(f"/groups/{group}/invitations", json={"accounts": accounts}, headers=NORTH)
    assert answer.status_code == 202
    assert finished(http, answer.json()["job"]) | {"job": ""} == {
        "job": "", "phase": "ended", "waiting": 0, "done": 119, "not_invited": 1,
    }  # fmt: skip
    assert len(platforms.north.requests.of(InviteJoinGroup)) == 3


def test_a_job_that_a_restart_stopped_is_resumed(platforms: Platforms, tmp_path: Path) -> None:
    accounts = [f"a{n}" for n in range(1900)]  # 38 requests, at 20 in a second
    with TestClient(create_app(DATABASE, SqliteInbox(tmp_path / "events.db"), platforms)) as http:
        group = new_group(http, NORTH)
        job = http.post(f"/groups/{group}/invitations", json={"accounts": accounts}, headers=NORTH).json()["job"]
    assert 0 < len(platforms.north.requests.of(InviteJoinGroup)) < 38
    with TestClient(create_app(DATABASE, SqliteInbox(tmp_path / "events.db"), platforms)) as http:
        assert finished(http, job)["done"] == 1900
    assert len(platforms.north.requests.of(InviteJoinGroup)) == 38  # nothing was sent twice
    assert set(platforms.north.state.groups[group].members) == {"1000", *accounts}


def test_what_is_said_is_stored_under_its_tenant(http: TestClient, platforms: Platforms) -> None:
    for tenant, emulator in ((NORTH, platforms.north), (SOUTH, platforms.south)):
        group = new_group(http, tenant)
        copy_into(http, emulator)
        emulator.say("1000", group, "大家好")
        anyio.run(emulator.deliver)
    assert stored(2) == [("north", "1000"), ("south", "1000")]


def test_a_tenants_token_changes_without_a_restart(http: TestClient, platforms: Platforms) -> None:
    new_group(http, NORTH)
    platforms.north.change_token("a-new-token")
    query("UPDATE tenant SET old_token = app_token, app_token = 'a-new-token' WHERE name = 'north'")
    new_group(http, NORTH)
    codes = [record.code for record in platforms.north.requests]
    assert codes == ["000000", "000000", "111109", "000000", "000000"]  # of creations, each followed by a look
    copy_into(http, platforms.north)
    platforms.north.say("1000", next(iter(platforms.north.state.groups)), "大家好")
    anyio.run(platforms.north.deliver)
    assert stored(1) == [("north", "1000")]
