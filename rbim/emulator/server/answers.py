"""The answers of commands, as types: the OpenAPI document, the help and the checks of ``--field`` derive from them.

The text beside a type describes the field.
"""

from typing import Annotated, Literal, TypedDict

__all__ = [
    "Clock",
    "CopyTarget",
    "Counts",
    "Failure",
    "Index",
    "Login",
    "MayCall",
    "Membership",
    "MessageSent",
    "Outage",
    "RefusedRequest",
]


class Index(TypedDict):
    """The emulator's description of itself."""

    about: Annotated[str, "A sentence that begins with: An emulator."]
    control: Annotated[str | None, "The address of the control interface that an outage does not affect."]
    commands: Annotated[dict[str, str], "Each command, such as GET /_emulator/state, with its effect."]


class Counts(TypedDict):
    """The size of the state."""

    groups: Annotated[int, "The number of groups."]
    tasks: Annotated[int, "The number of call tasks."]


class Clock(TypedDict):
    """The emulator's time."""

    now: Annotated[str, "The date and time, as ISO 8601 with the offset from UTC."]
    monotonic: Annotated[float, "The seconds of its clock, as in requests and deliveries."]
    emulated: Annotated[bool, "Whether the clock moves only when it is advanced."]


class MayCall(TypedDict):
    """Whether a call task may call."""

    task_id: Annotated[str, "The task."]
    at: Annotated[str, "The emulator's time, as ISO 8601 with the offset from UTC."]
    may_call: Annotated[bool, "Whether the task may call now."]


class Outage(TypedDict):
    """An outage that has begun."""

    seconds: Annotated[float, "Its duration in seconds of the emulator's clock."]
    control: Annotated[str, "The address of the control interface meanwhile."]


class Login(TypedDict):
    """An account that has logged in."""

    account: Annotated[str, "The account."]


class Membership(TypedDict):
    """A group, and an account whose invitation or request to join was answered."""

    group_id: Annotated[str, "The group."]
    account: Annotated[str, "The account."]


class CopyTarget(TypedDict):
    """Where messages are copied to."""

    url: Annotated[str | None, "The address; null if the emulator copies to an object in Python."]
    mode: Annotated[Literal["normal", "high-guarantee"], "The mode of the copies."]


class MessageSent(TypedDict):
    """A message that was sent."""

    message_id: Annotated[str, "The id of the message, msgId in copies."]


class Failure(TypedDict):
    """A command that is refused."""

    error: Annotated[str, "The reason."]


class RefusedRequest(Failure):
    """A request of a web page of another server, or one that names another host."""

    statusCode: Annotated[str, "The code of the emulator for a request that it cannot read."]
    statusMsg: Annotated[str, "The reason, as the platform's operations give it."]
