# ruff: noqa: D103, INP001, S101  # tests assert, and need no docstrings; a folder of examples is no package
"""Tests of ``service.py`` with the emulator as the platform: they need no network, no account and no configuration.

    python -m pip install rbim fastapi pytest
    python -m pytest test_service.py

``rbim_emulator`` and ``rbim_client`` are fixtures of rbim's pytest plugin, which pytest loads automatically.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from fastapi.testclient import TestClient
from service import copies, create_app

from rbim import AsyncClient, CreateGroup
from rbim.callbacks import Policy, Receiver, SqliteInbox
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, ResetAfter, Status


@pytest.fixture
def inbox(tmp_path: Path) -> SqliteInbox:
    """The inbox of the service."""
    return SqliteInbox(tmp_path / "events.db")


@pytest.fixture
def http(rbim_emulator: Emulator, rbim_client: AsyncClient, inbox: SqliteInbox) -> Iterator[TestClient]:
    """A client of the running service, whose platform is the emulator."""
    whenever = Policy(back=None, ahead=None)  # emulated time differs from real time
    receiver = Receiver(credentials=rbim_emulator.credentials, sink=inbox, router=copies, policy=whenever)
    rbim_emulator.copy_to(receiver)
    with TestClient(create_app(rbim_client, receiver)) as http:
        yield http


def test_who_cannot_be_invited_is_named(http: TestClient, rbim_emulator: Emulator) -> None:
    rbim_emulator.never_logged_in("1002")
    group = http.post("/groups", json={"name": "产品公告"}, headers={"X-Account": "1000"}).json()

    answer = http.post(f"/groups/{group['group_id']}/members", json={"accounts": ["1001", "1002"]})

    assert list(answer.json()["refused"]) == ["1002"]
    assert list(rbim_emulator.state.groups[group["group_id"]].members) == ["1000", "1001"]


@pytest.mark.rbim(faults=[Fault(effect=ResetAfter(), operation=CreateGroup)])
def test_a_lost_answer_is_not_passed_off_as_a_failure(http: TestClient, rbim_emulator: Emulator) -> None:
    answer = http.post("/groups", json={"name": "产品公告"})

    assert (answer.status_code, answer.json()["outcome"]) == (504, "unknown")
    assert "Look before sending it again" in answer.json()["advice"]
    assert len(rbim_emulator.requests.of(CreateGroup)) == len(rbim_emulator.state.groups) == 1


@pytest.mark.rbim(faults=[Fault(effect=Status(429, retry_after=60))])
def test_a_platform_that_has_enough_of_us(http: TestClient) -> None:
    answer = http.get("/groups/g1")

    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60")


def test_what_is_said_in_a_group_is_noted(
    http: TestClient, rbim_emulator: Emulator, inbox: SqliteInbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uvicorn.error")
    group_id = http.post("/groups", json={"name": "产品公告"}, headers={"X-Account": "1001"}).json()["group_id"]
    rbim_emulator.say("1001", group_id, "大家好")

    async def deliver() -> None:
        await rbim_emulator.deliver()
        while (await inbox.counts()).waiting:  # noqa: ASYNC110  # handlers run after the answer
            await anyio.sleep(0.01)

    assert http.portal is not None
    http.portal.call(deliver)

    assert f"1001 said '大家好' in {group_id}" in caplog.messages
