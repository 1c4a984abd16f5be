"""The name of a client: in its events, logs, errors and repr, so that one of many can be found."""

import copy
import logging
import pickle

import pytest

from helpers.stubs import BASE_URL, CREDENTIALS, Stub
from rbim import AsyncClient, InvalidRequest, LoggingObserver, NotSent, QueryGroupDetail, RbimError, Retry


def named(name, *, observers=()):
    lost = Stub(NotSent)
    options = {"name": name} if name is not None else {}
    return AsyncClient(
        base_url=BASE_URL, credentials=CREDENTIALS, transport=lost, retry=Retry(attempts=1), observers=observers, **options
    )


async def error_of(client):
    async with client:
        with pytest.raises(RbimError) as failed:
            await client.groups.detail(group_id="g1")
    return failed.value


async def test_every_event_of_a_call_has_the_clients_name():
    seen = []
    await error_of(named("tenant-7", observers=[seen.append]))
    assert [each.client for each in seen] == ["tenant-7"] * 4


async def test_an_error_names_its_client_also_when_it_was_pickled_or_copied():
    error = await error_of(named("tenant-7"))
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert each.client == "tenant-7"
        assert str(each).startswith("tenant-7: QueryGroupDetail: ")


async def test_without_a_name_nothing_names_the_client(caplog):
    caplog.set_level(logging.DEBUG, "rbim")
    error = await error_of(named(None, observers=[LoggingObserver()]))
    assert error.client == ""
    assert str(error).startswith("QueryGroupDetail: ")
    assert {record.rbim_client for record in caplog.records} == {""}
    assert all(record.getMessage().startswith("QueryGroupDetail ") for record in caplog.records)


async def test_log_records_name_the_client_in_text_and_fields(caplog):
    caplog.set_level(logging.DEBUG, "rbim")
    await error_of(named("tenant-7", observers=[LoggingObserver()]))
    assert len(caplog.records) == 2
    assert {record.rbim_client for record in caplog.records} == {"tenant-7"}
    assert all(record.getMessage().startswith("tenant-7: QueryGroupDetail ") for record in caplog.records)


async def test_views_have_the_name_of_their_client():
    client = named("tenant-7")
    assert client.name == client.acting_as("mary").name == "tenant-7"
    assert repr(client) == f"<AsyncClient tenant-7 of {CREDENTIALS.app_id}, new>"
    error = await error_of(client)
    assert error.operation == QueryGroupDetail.spec.name


def test_a_name_is_one_printable_line():
    for wrong in ["two\nlines", "\x1b[31m", "x" * 101, "zero\0", 7, None, b"tenant"]:
        with pytest.raises(InvalidRequest, match="name"):
            AsyncClient(base_url=BASE_URL, credentials=CREDENTIALS, transport=Stub(), name=wrong)
