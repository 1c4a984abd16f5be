"""Views of a client: they act as another account or with other settings, and share everything else."""

import pytest
from anyio import create_task_group
from attrs import evolve

from helpers.stubs import FULL_PAUSES, NO_PAUSES, OK, ONCE, READ, Stub, client_over, failing, waits
from rbim import AsyncClient, ClientClosed, Limits, NotSent, Rate, Retry

# Views


def view_of(client, kind):
    return {
        "client": lambda: client,
        "acting_as": lambda: client.acting_as("boss"),
        "tuned": lambda: client.tuned(timeout=9),
        "both": lambda: client.tuned(deadline=25).acting_as("boss").tuned(retry=FULL_PAUSES),
    }[kind]()


KINDS = ("acting_as", "tuned", "both")


async def test_views_act_as_another_account_and_change_nothing_else():
    stub = Stub()
    async with client_over(stub, user_name="owner") as client:
        boss = client.acting_as("boss")
        for sender in (client, boss, boss.acting_as("third"), boss.acting_as(None), client):
            await sender.send(READ)
    assert [document.get("userName") for document in stub.documents] == ["owner", "boss", "third", None, "owner"]


async def test_an_account_named_by_the_operation_goes_before_the_views():
    stub = Stub()
    async with client_over(stub, user_name="owner") as client:
        await client.acting_as("boss").send(evolve(READ, user_name="me"))
        await client.acting_as("boss").groups.detail(group_id="g1", user_name="me")
    assert [document["userName"] for document in stub.documents] == ["me", "me"]


async def test_views_compose_in_any_order():
    stub = Stub()
    async with client_over(stub) as client:
        one = client.acting_as("a").tuned(timeout=3).acting_as("boss").tuned(deadline=2)
        other = client.tuned(deadline=1).tuned(deadline=2).tuned(timeout=3).acting_as("boss")
        for sender in (one, other, client):
            await sender.send(READ)
    assert [document.get("userName") for document in stub.documents] == ["boss", "boss", None]
    assert stub.timeouts == [2, 2, 10]


async def test_a_tuned_view_repeats_as_it_was_told():
    stub = Stub(NotSent)
    async with client_over(stub) as client:
        for sender, attempts in ((client.tuned(retry=ONCE), 1), (client, 3), (client.tuned(retry=Retry(attempts=5)), 5)):
            assert len((await failing(sender.send(READ))).attempts) == attempts


async def test_views_share_the_gate():
    for kind in KINDS:
        stub = Stub(waits(1))
        async with client_over(stub, limits=Limits(concurrency=1)) as client, create_task_group() as tasks:
            for sender in (client, view_of(client, kind), client, view_of(client, kind)):
                tasks.start_soon(sender.send, READ)
        assert stub.most == 1


async def test_views_share_rates():
    for kind in KINDS:
        stub = Stub(OK)
        async with client_over(stub, limits=Limits(rates=[Rate(1)])) as client:
            view = view_of(client, kind)
            await client.send(READ)
            await view.send(READ)
            await client.send(READ)
        assert stub.times == [0, 1, 2]


async def test_views_share_the_retry_budget():
    for kind in KINDS:
        stub = Stub(NotSent)
        async with client_over(stub, retry=NO_PAUSES) as client:
            for _ in range(60):
                await failing(view_of(client, kind).send(READ))
            error = await failing(client.tuned(retry=Retry(attempts=9, random=lambda: 0.0)).send(READ))
        assert len(error.attempts) <= 2
        assert "retry budget" in error.__notes__[0]


async def test_views_cannot_be_entered_left_or_closed():
    for kind in KINDS:
        view = view_of(client_over(Stub()), kind)
        assert not isinstance(view, AsyncClient)
        assert not [name for name in ("__aenter__", "__aexit__", "__enter__", "close", "aclose") if hasattr(view, name)]


async def test_views_see_what_becomes_of_their_client():
    for kind in KINDS:
        client = client_over(Stub())
        view = view_of(client, kind)
        assert isinstance(await failing(view.send(READ)), ClientClosed)
        async with client:
            await view.send(READ)
        assert isinstance(await failing(view.send(READ)), ClientClosed)


async def test_names_that_nobody_declared_are_no_attributes():
    with pytest.raises(AttributeError, match="nothing"):
        _ = client_over(Stub()).nothing
    with pytest.raises(AttributeError, match="_hidden"):
        _ = client_over(Stub())._hidden
