# noqa: INP001  # a folder of examples is no package
"""A web service in FastAPI that calls the platform and receives its callbacks: one client, one receiver.

    python -m pip install "rbim[server]" fastapi
    uvicorn --factory service:create_app --port 8000

RBIM_BASE_URL, RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) select the platform.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from math import ceil
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.routing import Route

from rbim import (
    AlreadyMember,
    ApiError,
    AsyncClient,
    AuthenticationError,
    GroupType,
    InvalidRequest,
    NotFound,
    NotMember,
    Outcome,
    RbimError,
    Throttled,
    View,
)
from rbim.callbacks import ConvType, Event, Receiver, Router, SqliteInbox, TeamKick, Text

log = logging.getLogger("uvicorn.error")  # uvicorn shows this logger
api = APIRouter()
copies = Router()


# ------------------------------------------------------------------- routes of the service


async def platform(
    request: Request,
    account: Annotated[str | None, Header(alias="X-Account")] = None,  # in a real service: from the session
    seconds: Annotated[float, Header(alias="X-Deadline", gt=0, le=30)] = 10,
) -> View:
    """Return a view of the shared client for this request: its acting account, and its deadline for all attempts."""
    client: AsyncClient = request.app.state.client
    view = client.tuned(deadline=seconds)
    return view if account is None else view.acting_as(account)


Platform = Annotated[View, Depends(platform)]


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


@api.post("/groups", status_code=201)
async def create_group(new: NewGroup, platform: Platform) -> Group:
    """Create a group. rbim never sends this request twice: if the answer is lost, the route answers 504."""
    created = await platform.groups.create(name=new.name, type=GroupType.PAID_500)
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


# -------------------------------------------------------------------------------- errors

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
    log.warning("%s %s: %d: %s", request.method, request.url.path, status, error)  # no error shows a token
    wait = error.retry_after if isinstance(error, Throttled) else None
    return JSONResponse(
        {"error": type(error).__name__, "detail": error.message, "outcome": error.outcome, "advice": ADVICE[error.outcome]},
        status_code=status,
        headers={"Retry-After": str(ceil(wait or 1))} if status in {429, 503} else None,
    )


# ----------------------------------------------------------------- callbacks: handlers


@copies.on(TeamKick)
async def kicked(event: TeamKick) -> None:
    """Log the removed members. The handler is called again if it raises, and not after it has returned."""
    log.info("%s lost %s", event.group_id, ", ".join(member.user for member in event.t_members))


@copies.on(Text, conv_type=ConvType.TEAM)
async def said(event: Text) -> None:
    """Log the text messages in groups."""
    log.info("%s said %r in %s", event.from_account.user, event.body, event.group_id)


@copies.fallback
async def anything_else(event: Event) -> None:
    """Log all other events: each event needs a handler."""
    log.info("ignored: %s", event.msg_type)


# ------------------------------------------------------------------------ the application


def create_app(client: AsyncClient | None = None, receiver: Receiver | None = None) -> FastAPI:
    """Make the application; a test passes its own client and receiver."""
    client = client or AsyncClient.from_env()
    receiver = receiver or Receiver.from_env(sink=SqliteInbox("events.db"), router=copies)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with client, receiver:
            app.state.client = client
            yield

    app = FastAPI(title="Groups", lifespan=lifespan)
    app.include_router(api)
    app.add_exception_handler(RbimError, failed)
    app.routes.append(Route("/copies", receiver.asgi, methods=["POST"]))  # a mount would redirect to /copies/
    return app
