"""What type checkers make of the public API. Never executed: mypy and pyright read it, in strict mode.

Wrong uses bear the ignore comments of both; each checker reports a comment of its own that suppresses nothing, so that
every line here proves something.
"""

from __future__ import annotations

from datetime import date, time
from typing import Any, TypeVar, assert_type

from attrs import field, frozen

from rbim import (
    Answer,
    AppSigner,
    AsyncClient,
    AttemptEnded,
    CallTaskCreated,
    ClientOptions,
    Clock,
    Created,
    CreateGroup,
    Credentials,
    DeleteGroup,
    Done,
    Exchange,
    Failed,
    GroupDetail,
    GroupOperation,
    GroupsFound,
    GroupType,
    Invited,
    InvitedAll,
    InviteJoinGroup,
    Limits,
    LoggingObserver,
    Method,
    Namespace,
    NoCallPolicy,
    Observation,
    Observer,
    Operation,
    Outcome,
    Permission,
    QueryGroupDetail,
    Rate,
    RbimError,
    Request,
    Response,
    Role,
    Sender,
    Signer,
    Success,
    SystemClock,
    Target,
    Transport,
    View,
    Weekday,
    default_no_call_policies,
    fan_out,
    sync,
)
from rbim.bulk import InviteJob, Job, JobOptions, RemoveJob, Report, open_job
from rbim.callbacks import MemorySink, Receiver
from rbim.config import load
from rbim.operations.base import operation, wire
from rbim.operations.fails import Fail
from rbim.operations.groups import GroupFound
from rbim.otel import OtelObserver
from rbim.validators import text

R = TypeVar("R")

# ------------------------------------------------------------------------------------- right uses


class Counting:
    """An observer is anything that can be called with an observation."""

    ended: int = 0

    def __call__(self, observation: Observation, /) -> None:
        if isinstance(observation, AttemptEnded):
            self.ended = observation.attempt.number


seen: list[Observation] = []
observers: list[Observer] = [Counting(), seen.append, LoggingObserver(), OtelObserver()]
AsyncClient(base_url="http://x", credentials=Credentials(app_id="a", app_token="b"), observers=observers)


def clients_of_the_environment(options: ClientOptions) -> None:
    assert_type(AsyncClient.from_env(), AsyncClient)
    AsyncClient.from_env(user_name=None, timeout=5, transport="asyncio", limits=Limits(rates=[Rate(50)]))
    AsyncClient.from_env(**options)
    assert_type(load("test", timeout=5, rates=["50/s", Rate(9)], token_file=None).client(**options), AsyncClient)
    Receiver.from_env(sink=MemorySink(), mode="high-guarantee", budget=1)


def jobs_take_the_settings_of_all_jobs(client: AsyncClient, options: JobOptions) -> None:
    assert_type(InviteJob(client, journal="a", rates=["50/s", Rate(9)], declared="x", max_failures=None), InviteJob)
    InviteJob(client, journal="a", **options)
    RemoveJob(client, journal="a", chunk=5, resend_within=60)
    assert_type(Job(client, DeleteGroup, journal="a", rates=["50/s"]), Job[Success])
    open_job(client, "a", concurrency=5, retry=None)


async def every_method_is_awaited_for_its_own_answer(client: AsyncClient) -> None:
    groups = client.groups
    assert_type(await groups.create(name="a", type=GroupType.VIP), Created)
    assert_type(await groups.create(name="a", type=GroupType.VIP, permission=Permission.OPEN, target=Target.GROUP), Created)
    assert_type(await groups.modify(group_id="g1", name="a", permission=None), Success)
    assert_type(await groups.modify(group_id="g1", name="a", permission=Permission.PRIVATE, declared="x"), Success)
    assert_type(await groups.delete(group_id="g1", user_name="admin"), Success)
    assert_type(await groups.search(name="a"), GroupsFound)
    assert_type(await groups.search(), GroupsFound)
    assert_type(await groups.detail(group_id="g1"), GroupDetail)
    assert_type(await groups.join(group_id="g1", declared="hello"), Success)
    assert_type(await groups.invite(group_id="g1", members=["1001"], needs_confirmation=True), Invited)
    assert_type(await groups.remove(group_id="g1", members=("1001", "1002")), Success)
    assert_type(await groups.invite_all(group_id="g1", members={"1001"}, declared="x"), InvitedAll)
    assert_type((await groups.remove_all(group_id="g1", members=["1001"])).removed, tuple[str, ...])
    assert_type(await groups.leave(group_id="g1"), Success)
    assert_type(await groups.set_role(group_id="g1", member="1001", role=Role.ADMINISTRATOR), Success)
    assert_type(
        await client.calls.create_task(
            bot_id=1,
            task_name="a",
            start_date=date(2026, 1, 2),
            end_date=date(2026, 1, 3),
            max_concurrent=2,
            min_concurrent=1,
            caller="400",
            isrecord=True,
            call_policy=[*default_no_call_policies(), NoCallPolicy.weekdays("x", [Weekday.SUNDAY])],
        ),
        CallTaskCreated,
    )


async def send_and_exchange_know_the_answer_of_the_operation(client: AsyncClient) -> None:
    assert_type(await client.send(CreateGroup(name="a", type=GroupType.VIP)), Created)
    assert_type(await client.send(QueryGroupDetail(group_id="g1")), GroupDetail)
    exchange = await client.exchange(InviteJoinGroup(group_id="g1", members={"1001", "1002"}))
    assert_type(exchange, Exchange[Invited])
    assert_type(exchange.answer, Invited)
    assert_type(exchange.response, Response)


async def answers_are_typed_through(client: View) -> None:
    detail = await client.groups.detail(group_id="g1")
    assert_type(detail.count, int | None)
    assert_type(detail.type, GroupType | str | None)
    assert_type(detail.declared, str)
    for group in await client.groups.search(name="a"):
        assert_type(group, GroupFound)
    for fail in (await client.groups.invite(group_id="g1", members=["1"])).fails:
        assert_type(fail, Fail)


def accounts_are_any_collection_of_texts(names: dict[str, int], listed: list[str]) -> None:
    for members in (names.keys(), frozenset(listed), tuple(listed)):
        InviteJoinGroup(group_id="g1", members=members)
    assert_type(InviteJoinGroup(group_id="g1", members=listed).members, tuple[str, ...])


async def views_are_views(client: AsyncClient) -> None:
    assert_type(client.acting_as("admin"), View)
    assert_type(client.tuned(deadline=5).acting_as(None), View)
    assert_type(await client.acting_as("admin").groups.leave(group_id="g1"), Success)
    async with client as entered:
        assert_type(entered, AsyncClient)


async def a_fan_out_keeps_the_type_of_its_answers(sender: Sender) -> None:
    operations = [QueryGroupDetail(group_id="g1"), QueryGroupDetail(group_id="g2")]
    async with fan_out(sender, operations, workers=2) as outcomes:
        async for outcome in outcomes:
            assert_type(outcome, Done[GroupDetail] | Failed[GroupDetail])
            if isinstance(outcome, Done):
                assert_type(outcome.answer, GroupDetail)
            else:
                assert_type(outcome.error.outcome, Outcome)


def blocking_calls_are_typed_as_async_ones(options: ClientOptions, rows: list[tuple[str, str]]) -> None:
    with sync.Client.from_env(**options) as client:
        assert_type(client, sync.Client)
        assert_type(client.groups.create(name="a", type=GroupType.VIP), Created)
        assert_type(client.acting_as("admin").tuned(deadline=5), sync.View)
        assert_type(client.tuned(deadline=5).groups.detail(group_id="g1").count, int | None)
        assert_type(client.send(DeleteGroup(group_id="g1")), Success)
        assert_type(client.exchange(QueryGroupDetail(group_id="g1")), Exchange[GroupDetail])
        assert_type(client.run(lambda inner: InviteJob(inner, journal="a").run(rows)), Report)
        assert_type(client.groups.invite_all(group_id="g1", members=["1001"]), InvitedAll)
        assert_type(client.warm_up(), None)
        with client.fan_out([QueryGroupDetail(group_id="g1")], workers=2) as outcomes:
            for outcome in outcomes:
                assert_type(outcome, Done[GroupDetail] | Failed[GroupDetail])
    sync.Client(load("test").client)
    sync.Client(lambda: AsyncClient(base_url="http://x"))


@frozen(kw_only=True)
class Muted(Answer):
    until: int | None = None


@operation("MuteGroup")
@frozen(kw_only=True)
class MuteGroup(GroupOperation[Muted]):
    group_id: str = field(validator=text())
    minutes: int = field(default=5, metadata=wire("forMinutes"))


class Moderation(Namespace):
    mute = Method(MuteGroup)


async def an_operation_of_ones_own_is_as_typed_as_rbims(client: AsyncClient) -> None:
    assert_type(await client.send(MuteGroup(group_id="g1", minutes=7)), Muted)
    assert_type(await Moderation(client).mute(group_id="g1"), Muted)
    assert_type((await client.exchange(MuteGroup(group_id="g1"))).answer, Muted)
    assert_type(Moderation.mute.operation, type[Operation[Muted]])


class Forwarding:
    """Anything that can send operations is a sender."""

    def __init__(self, to: AsyncClient) -> None:
        self.to = to

    async def send(self, operation: Operation[R], /) -> R:
        return await self.to.send(operation)


def protocols_fit(client: AsyncClient, view: View, credentials: Credentials) -> tuple[Sender, Sender, Signer, Clock]:
    return client, view, AppSigner(credentials), SystemClock()


def what_errors_carry(error: RbimError) -> None:
    assert_type(error.outcome, Outcome)
    assert_type(error.operation, str | None)


# ------------------------------------------------------------------------------------- wrong uses


async def wrong_keywords(client: AsyncClient) -> None:
    await client.groups.create(name="a", kind=GroupType.VIP)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.groups.modify(group_id="g1", name="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.groups.leave("g1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    CreateGroup("a", GroupType.VIP)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.tuned(patience=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def wrong_values(client: AsyncClient) -> None:
    await client.groups.create(name="a", type="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.groups.create(name="a", type=Role.MEMBER)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.groups.detail(group_id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.groups.detail(group_id=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    NoCallPolicy.hours("a", date(2026, 1, 2), time(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_blocking_calls(client: sync.Client) -> None:
    client.groups.create(name="a", kind=GroupType.VIP)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.groups.leave("g1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.groups.detail(group_id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.tuned(patience=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.fan_out([QueryGroupDetail(group_id="g1")], wrkers=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sync.Client.from_env(limit=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    found: GroupDetail = client.groups.search(name="a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    assert_type(found, GroupDetail)


async def bare_strings_for_members(client: AsyncClient) -> None:
    await client.groups.invite(group_id="g1", members="1001")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.groups.remove(group_id="g1", members="1001")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.groups.invite_all(group_id="g1", members="1001")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    InviteJoinGroup(group_id="g1", members="1001")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    InviteJoinGroup(group_id="g1", members=[1001])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def a_new_group_is_no_number(client: AsyncClient) -> int:
    return await client.groups.create(name="a", type=GroupType.VIP)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def a_success_is_no_text(client: AsyncClient) -> str:
    return await client.send(DeleteGroup(group_id="g1"))  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]


async def an_answer_of_ones_own_is_not_none(client: AsyncClient) -> None:
    return await Moderation(client).mute(group_id="g1")  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def an_answer_is_not_the_answer_of_another(client: AsyncClient) -> GroupDetail:
    found: GroupDetail = await client.groups.search(name="a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    return found


async def a_search_has_no_group_id(client: AsyncClient) -> object:
    found = await client.groups.search(name="a")
    assert_type(found.group_id, str)  # type: ignore[attr-defined, assert-type]  # pyright: ignore[reportAttributeAccessIssue, reportAssertTypeFailure, reportUnknownMemberType]
    return found


def changed_values(op: CreateGroup, answer: GroupDetail, request: Request) -> None:
    op.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    answer.count = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    request.body = b""  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def wrong_options(options: ClientOptions) -> None:
    AsyncClient.from_env(limit=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AsyncClient.from_env(timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncClient.from_env(limits="50/s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Receiver.from_env(sink=MemorySink(), typo=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Receiver.from_env(sink=MemorySink(), mode="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Receiver.from_env()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    load(typo=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    load().client(typo=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    load(timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    options["typo"] = 1  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportGeneralTypeIssues]


def wrong_jobs(client: AsyncClient) -> None:
    InviteJob(client, jurnal="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    InviteJob(client, journal="a", typo=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    InviteJob(client, journal="a", rates=[50])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    RemoveJob(client)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RemoveJob(client, journal="a", typo=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RemoveJob(client, journal="a", concurrency="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    open_job(client, "a", chunk=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def wrong_clients(carrier: Transport, credentials: Credentials) -> None:
    AsyncClient(base_url="https://host", credentials=credentials, transport=carrier)
    AsyncClient("https://host")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AsyncClient(base_url="https://host", retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AsyncClient(base_url="https://host", transport=object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class NoAnswer:
    async def send(self, operation: Operation[Any], /) -> int:
        return len(operation.spec.name)


def wrong_senders(counting: NoAnswer) -> Sender:
    return counting  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
