# noqa: INP001  # a folder of examples is no package
"""A web service that awaits the platform and receives its message copies: one client, one receiver, in FastAPI.

    python -m pip install "rbim[server]" fastapi
    uvicorn --factory service:create_app --port 8000

RBIM_BASE_URL, RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) say which platform.
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

log = logging.getLogger("uvicorn.error")  # the one that uvicorn shows
api = APIRouter()
copies = Router()


# ------------------------------------------------------------------ what the service offers


async def platform(
    request: Request,
    account: Annotated[str | None, Header(alias="X-Account")] = None,  # yours comes from a session
    seconds: Annotated[float, Header(alias="X-Deadline", gt=0, le=30)] = 10,
) -> View:
    """The shared client, as this request needs it: whose account acts, and how long all attempts may take together."""
    client: AsyncClient = request.app.state.client
    view = client.tuned(deadline=seconds)
    return view if account is None else view.acting_as(account)


Platform = Annotated[View, Depends(platform)]


class NewGroup(BaseModel):
    """What a group is made of."""

    name: str


class Group(BaseModel):
    """A group as it is shown."""

    group_id: str
    name: str
    owner: str
    count: int | None


class Accounts(BaseModel):
    """Who is to be invited."""

    accounts: list[str]


class Invitation(BaseModel):
    """Who was not invited, and why."""

    refused: dict[str, str]


@api.post("/groups", status_code=201)
async def create_group(new: NewGroup, platform: Platform) -> Group:
    """Create a group. Never sent twice: where the answer is lost, this answers 504."""
    created = await platform.groups.create(name=new.name, type=GroupType.PAID_500)
    return await show_group(created.group_id, platform)


@api.get("/groups/{group_id}")
async def show_group(group_id: str, platform: Platform) -> Group:
    """Show a group."""
    detail = await platform.groups.detail(group_id=group_id)
    return Group(group_id=group_id, name=detail.name, owner=detail.owner, count=detail.count)


@api.post("/groups/{group_id}/members")
async def invite(group_id: str, who: Accounts, platform: Platform) -> Invitation:
    """Invite accounts into a group; sent again by itself where that does no harm."""
    invited = await platform.groups.invite(group_id=group_id, members=who.accounts)
    return Invitation(refused={fail.member: fail.reason for fail in invited.fails})


# ------------------------------------------------------------------------- when it fails

ADVICE = {
    Outcome.NOT_SENT: "Nothing was done, and it can be sent again.",
    Outcome.REFUSED: "Nothing was done.",
    Outcome.UNKNOWN: "It may have been done, the answer was lost. Look before sending it again.",
}


def status_of(error: RbimError) -> int:
    """Return the HTTP status for our caller. That it may have been done goes before all other news."""
    match error:
        case _ if error.outcome is Outcome.UNKNOWN:
            return 504
        case InvalidRequest():
            return 422
        case NotFound():
            return 404
        case Throttled():
            return 429
        case AuthenticationError():  # our credentials, none of our caller's business
            return 502
        case AlreadyMember() | NotMember() | ApiError():
            return 409
        case _:  # not sent: no connection, or no time left
            return 503


async def failed(request: Request, error: Exception) -> JSONResponse:
    """Answer for every error of rbim that reaches the framework."""
    assert isinstance(error, RbimError)  # noqa: S101  # registered for no other
    status = status_of(error)
    log.warning("%s %s: %d: %s", request.method, request.url.path, status, error)  # no error shows a token
    wait = error.retry_after if isinstance(error, Throttled) else None
    return JSONResponse(
        {"error": type(error).__name__, "detail": error.message, "outcome": error.outcome, "advice": ADVICE[error.outcome]},
        status_code=status,
        headers={"Retry-After": str(ceil(wait or 1))} if status in {429, 503} else None,
    )


# ------------------------------------------------------------- what the platform tells us


@copies.on(TeamKick)
async def kicked(event: TeamKick) -> None:
    """Note who was removed. Called again if it raises, and not again once it has returned."""
    log.info("%s lost %s", event.group_id, ", ".join(member.user for member in event.t_members))


@copies.on(Text, conv_type=ConvType.TEAM)
async def said(event: Text) -> None:
    """Note what is said in groups."""
    log.info("%s said %r in %s", event.from_account.user, event.body, event.group_id)


@copies.fallback
async def anything_else(event: Event) -> None:
    """Note that there was something else: no event is without a handler."""
    log.info("%s is of no interest", event.msg_type)


# ------------------------------------------------------------------------ the application


def create_app(client: AsyncClient | None = None, receiver: Receiver | None = None) -> FastAPI:
    """Make the application; a test hands in its own client and receiver."""
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
