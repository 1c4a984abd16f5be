# noqa: INP001  # a folder of examples is no package
"""A web service for several tenants: FastAPI, PostgreSQL, one client for each tenant, jobs, callbacks, telemetry.

    python -m pip install ".[server,otel]" fastapi asyncpg  # in a clone
    uvicorn --factory service:create_app --port 8000

DATABASE_URL names the database. A tenant is a row of its table ``tenant``: to rotate a token, move ``app_token`` to
``old_token`` and write the new one. JOBS is the folder of the jobs' journals (default: ``jobs``).
"""

import logging
import os
from asyncio import Lock
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from math import ceil
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup
from asyncpg import Pool, create_pool
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.routing import Route

from rbim import (
    AlreadyMember,
    ApiError,
    AsyncClient,
    AuthenticationError,
    Credentials,
    GroupType,
    InvalidRequest,
    Limits,
    NotFound,
    NotMember,
    Outcome,
    RbimError,
    Throttled,
    Transport,
    View,
)
from rbim.bulk import InviteJob, Run, open_job
from rbim.callbacks import Event, HandlerContext, Receiver, Router, SqliteInbox, Text
from rbim.otel import OtelObserver
from rbim.transports.httpx import HttpxTransport

SCHEMA = """
CREATE TABLE IF NOT EXISTS tenant (
    name text PRIMARY KEY, base_url text NOT NULL, app_id text NOT NULL, app_token text NOT NULL, old_token text);
CREATE TABLE IF NOT EXISTS copy (
    key text PRIMARY KEY, tenant text NOT NULL, kind text NOT NULL, author text NOT NULL, received timestamptz NOT NULL);
"""

log = logging.getLogger("uvicorn.error")  # uvicorn shows this logger
otel = OtelObserver(attributes={"service.part": "groups"})  # records nothing until the process has an OpenTelemetry SDK
api = APIRouter()
copies: Router[Pool] = Router()


# ------------------------------------------------------------------------------ tenants


class Tenants:
    """The clients of all tenants: each with its own name, limits and credentials, over one transport."""

    def __init__(self, pool: Pool, transport: Transport) -> None:
        self._pool = pool
        self._transport = transport
        self._clients: dict[str, AsyncClient] = {}
        self._entered = AsyncExitStack()
        self._lock = Lock()

    async def client(self, name: str) -> AsyncClient:
        """Return the client of a tenant; the first call opens it."""
        async with self._lock:
            if name not in self._clients:
                base_url = await self._pool.fetchval("SELECT base_url FROM tenant WHERE name = $1", name)
                if base_url is None:
                    raise HTTPException(404, f"there is no tenant {name}")
                client = AsyncClient(
                    name=name,
                    base_url=base_url,
                    credentials=lambda: self._credentials(name),  # asked again when the platform refuses a token
                    transport=self._transport,
                    limits=Limits(concurrency=20, rates=["20/s"]),
                    observers=[otel],
                )
                self._clients[name] = await self._entered.enter_async_context(client)
                await client.warm_up()
        return self._clients[name]

    async def _credentials(self, name: str) -> Credentials:
        row = await self._pool.fetchrow("SELECT app_id, app_token FROM tenant WHERE name = $1", name)
        if row is None:
            raise LookupError(name)
        return Credentials(app_id=row["app_id"], app_token=row["app_token"])

    async def all_credentials(self) -> list[Credentials]:
        """Return what callbacks may be signed with: each tenant's token, and the one before."""
        rows = await self._pool.fetch("SELECT app_id, app_token, old_token FROM tenant")
        tokens = ((row["app_id"], row[column]) for column in ("app_token", "old_token") for row in rows)
        return [Credentials(app_id=app_id, app_token=token) for app_id, token in tokens if token]

    async def aclose(self) -> None:
        """Close all clients: calls in flight end with ClientClosed."""
        await self._entered.aclose()


async def platform(
    request: Request,
    tenant: Annotated[str, Header(alias="X-Tenant")],  # in a real service: from the session
    account: Annotated[str | None, Header(alias="X-Account")] = None,
    seconds: Annotated[float, Header(alias="X-Deadline", gt=0, le=30)] = 10,
) -> View:
    """Return a view of the tenant's client for this request: its acting account, and its deadline for all attempts."""
    tenants: Tenants = request.app.state.tenants
    return (await tenants.client(tenant)).tuned(deadline=seconds).acting_as(account)


Platform = Annotated[View, Depends(platform)]


# ------------------------------------------------------------------------------ routes


class NewGroup(BaseModel):
    """The body of a request for a new group."""

    name: str


class Group(BaseModel):
    """A group in an answer."""

    group_id: str
    name: str
    owner: str
    count: int | None


class Accounts(BaseModel):
    """The accounts to invite."""

    accounts: list[str]


class Invitation(BaseModel):
    """The accounts that were not invited, with the reasons."""

    refused: dict[str, str]


class Progress(BaseModel):
    """The progress of a job: accounts by state."""

    job: str
    phase: str
    waiting: int
    done: int
    not_invited: int


@api.post("/groups", status_code=201)
async def create_group(new: NewGroup, platform: Platform) -> Group:
    """Create a group. rbim never sends this request twice: if the answer is lost, the route answers 504."""
    created = await platform.groups.create(name=new.name, type=GroupType.VIP)
    return await show_group(created.group_id, platform)


@api.get("/groups/{group_id}")
async def show_group(group_id: str, platform: Platform) -> Group:
    """Show a group."""
    detail = await platform.groups.detail(group_id=group_id)
    return Group(group_id=group_id, name=detail.name, owner=detail.owner, count=detail.count)


@api.post("/groups/{group_id}/members")
async def invite(group_id: str, who: Accounts, platform: Platform) -> Invitation:
    """Invite accounts into a group. rbim repeats the request after a failure, because it is idempotent."""
    invited = await platform.groups.invite(group_id=group_id, members=who.accounts)
    return Invitation(refused={fail.member: fail.reason for fail in invited.fails})


@api.post("/groups/{group_id}/invitations", status_code=202)
async def invite_many(group_id: str, who: Accounts, platform: Platform, request: Request) -> Progress:
    """Invite any number of accounts in the background. Calls of the tenant go before the job's requests."""
    jobs: Jobs = request.app.state.jobs
    return await jobs.begin(platform, [(group_id, account) for account in who.accounts])


@api.get("/invitations/{job}")
async def progress(job: str, request: Request) -> Progress:
    """Show the progress of a job that runs in this process."""
    jobs: Jobs = request.app.state.jobs
    return jobs.progress(job)


# ------------------------------------------------------------------------------ jobs in the background


class Jobs:
    """The jobs of this process. A journal is a file; one that a former process left open is resumed at the start."""

    def __init__(self, tasks: TaskGroup, folder: Path) -> None:
        self._tasks = tasks
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._runs: dict[str, Run] = {}

    async def begin(self, platform: View, rows: list[tuple[str, str]]) -> Progress:
        """Begin a job, and return when its input is in the journal."""
        name = f"{platform.name}--{uuid4().hex}"
        run = InviteJob(platform, journal=self._folder / f"{name}.journal").run(rows)
        await self._tasks.start(self._keep, name, run)
        return self.progress(name)

    async def resume(self, tenants: Tenants) -> None:
        """Resume the jobs that are not over."""
        for path in sorted(self._folder.glob("*--*.journal")):
            job = open_job(await tenants.client(path.stem.partition("--")[0]), path)
            if not (await job.report()).complete:
                await self._tasks.start(self._keep, path.stem, job.resume())

    async def _keep(self, name: str, run: Run, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        started = False
        try:
            async with run:
                self._runs[name] = run
                with otel.observe_job(run, name):
                    async for _ in run:
                        if run.began and not started:
                            started = True
                            task_status.started()
        except (RbimError, OSError) as error:  # refused credentials, or another process has this journal
            log.warning("the job %s ended: %s", name, error)
        if not started:
            task_status.started()

    def progress(self, name: str) -> Progress:
        """Return the progress of a job."""
        if name not in self._runs:
            raise HTTPException(404, f"no job {name} runs here")
        now = self._runs[name].snapshot
        rest = now.refused + now.failed + now.unknown + now.skipped
        return Progress(job=name, phase=now.phase, waiting=now.waiting, done=now.done, not_invited=rest)

    def stop(self) -> None:
        """Let the requests in flight end, and send no others; the next process resumes."""
        for run in self._runs.values():
            run.stop()


# ------------------------------------------------------------------------------ errors

ADVICE = {
    Outcome.NOT_SENT: "Nothing was done, and it can be sent again.",
    Outcome.REFUSED: "Nothing was done.",
    Outcome.UNKNOWN: "It may have been done, the answer was lost. Look before sending it again.",
}


def status_of(error: RbimError) -> int:
    """Return the HTTP status for our caller. An unknown outcome is more important than the class of the error."""
    match error:
        case _ if error.outcome is Outcome.UNKNOWN:
            return 504
        case InvalidRequest():
            return 422
        case NotFound():
            return 404
        case Throttled():
            return 429
        case AuthenticationError():  # our credentials, not a fault of our caller
            return 502
        case AlreadyMember() | NotMember() | ApiError():
            return 409
        case _:  # not sent: no connection, or the deadline passed
            return 503


async def failed(request: Request, error: Exception) -> JSONResponse:
    """Return the answer for an error of rbim."""
    assert isinstance(error, RbimError)  # noqa: S101  # registered only for RbimError
    status = status_of(error)
    log.warning("%s %s: %d: %s", request.method, request.url.path, status, error)  # names the tenant; shows no token
    wait = error.retry_after if isinstance(error, Throttled) else None
    return JSONResponse(
        {"error": type(error).__name__, "detail": error.message, "outcome": error.outcome, "advice": ADVICE[error.outcome]},
        status_code=status,
        headers={"Retry-After": str(ceil(wait or 1))} if status in {429, 503} else None,
    )


# ------------------------------------------------------------------------------ callbacks: handlers

STORE = """
INSERT INTO copy (key, tenant, kind, author, received)
SELECT $1, name, $3, $4, $5 FROM tenant WHERE app_id = $2 ON CONFLICT DO NOTHING
"""


@copies.on(Text)
async def said(event: Text, handling: HandlerContext[Pool]) -> None:
    """Store who said something. A handler may be called again for the same event: its key makes that harmless."""
    await store(event, handling, event.from_account.user)


@copies.fallback
async def anything_else(event: Event, handling: HandlerContext[Pool]) -> None:
    """Store all other events: each event needs a handler."""
    await store(event, handling, "")


async def store(event: Event, handling: HandlerContext[Pool], author: str) -> None:
    """Store an event once, in the pool that the application and its handlers share."""
    values = (handling.key, handling.app_id, event.msg_type, author, handling.received)
    await handling.resource.execute(STORE, *values)


# ------------------------------------------------------------------------------ the application


def create_app(database: str | None = None, inbox: SqliteInbox | None = None, transport: Transport | None = None) -> FastAPI:
    """Make the application; a test passes its own parts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(create_pool(database or os.environ["DATABASE_URL"]))
            await pool.execute(SCHEMA)
            tenants = app.state.tenants = Tenants(pool, transport or HttpxTransport())
            stack.push_async_callback(tenants.aclose)

            @asynccontextmanager
            async def shared() -> AsyncGenerator[Pool]:
                yield pool  # the handlers' resource; the application closes it

            receiver = Receiver(
                name="copies",
                credentials=tenants.all_credentials,
                sink=inbox or SqliteInbox("events.db"),
                router=copies,
                around=shared,
                observers=[otel],
            )
            app.router.routes.append(Route("/copies", receiver.asgi, methods=["POST"]))  # a mount redirects to /copies/
            await stack.enter_async_context(receiver)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            jobs = app.state.jobs = Jobs(tasks, Path(os.environ.get("JOBS", "jobs")))
            stack.callback(jobs.stop)
            await jobs.resume(tenants)
            yield

    app = FastAPI(title="Groups", lifespan=lifespan)
    app.include_router(api)
    app.add_exception_handler(RbimError, failed)
    return app
