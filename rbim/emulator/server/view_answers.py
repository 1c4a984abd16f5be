"""The answers of the commands that show parts of the emulator, as types; see :mod:`rbim.emulator.server.answers`."""

from typing import Annotated, Any, TypedDict

__all__ = [
    "AccountList",
    "Content",
    "DeliveredAgain",
    "Exchange",
    "FaultCounts",
    "GroupList",
    "GroupSummary",
    "MessageList",
    "ShownAccount",
    "ShownAnswer",
    "ShownAttempt",
    "ShownGroup",
    "ShownMember",
    "ShownMessage",
    "ShownRequest",
    "ShownTask",
    "TaskList",
]


class _Size(TypedDict):
    size: Annotated[int, "The bytes of the whole body."]
    cut: Annotated[bool, "Whether only its beginning is here."]


class Content(_Size, total=False):
    """A body: as text, or in Base64 if it is not UTF-8."""

    text: Annotated[str, "The body as text."]
    base64: Annotated[str, "The body in Base64."]


class Exchange(TypedDict):
    """A request as it was sent."""

    method: Annotated[str, "The method."]
    path: Annotated[str, "The path."]
    query: Annotated[str, "The query; dots if it may be a signature with your own token."]
    headers: Annotated[list[list[str]], "Name and value of each header, as sent; dots in the place of a secret."]
    body: Annotated[Content, "The body."]
    took: Annotated[float, "The seconds until it was answered."]


class ShownAnswer(TypedDict):
    """An answer of the platform."""

    status: Annotated[int, "The HTTP status."]
    headers: Annotated[list[list[str]], "Name and value of each header."]
    body: Annotated[Content, "The body."]
    sent: Annotated[bool, "Whether it was sent: a fault may have ended the connection instead."]


class ShownRequest(TypedDict):
    """One request, as far as it is still kept."""

    number: Annotated[int, "The number of the request, as in the log."]
    exchange: Annotated[Exchange | None, "The request as it was sent; null if it is not kept any more."]
    answer: Annotated[ShownAnswer | None, "The answer; null if there was none, or if it is not kept any more."]
    curl: Annotated[str | None, "Shell commands that sign it and send it again; null without the whole body."]


class GroupSummary(TypedDict):
    """A group in a list."""

    group_id: Annotated[str, "The id."]
    name: Annotated[str, "The name."]
    type: Annotated[str, "The type, as on the wire."]
    permission: Annotated[str, "Who may join, as on the wire."]
    target: Annotated[str, "Whether it can be found, as on the wire."]
    owner: Annotated[str, "The account of its owner."]
    members: Annotated[int, "The number of members, with the owner."]
    member_limit: Annotated[int, "The most members of its type."]
    invited: Annotated[int, "The number of invitations that wait."]
    applied: Annotated[int, "The number of requests to join that wait."]


class GroupList(TypedDict):
    """The newest groups."""

    total: Annotated[int, "The number of all groups that are meant."]
    groups: Annotated[list[GroupSummary], "The newest, at most 200."]


class ShownMember(TypedDict):
    """A member of a group."""

    account: Annotated[str, "The account."]
    role: Annotated[str, "Its role, as on the wire."]


class ShownGroup(GroupSummary):
    """A group with its members."""

    declared: Annotated[str | None, "The announcement."]
    group_domain: Annotated[str | None, "The further data that a client stored."]
    created: Annotated[str, "When it was created, as ISO 8601."]
    accounts: Annotated[list[ShownMember], "The members."]
    invitations: Annotated[list[str], "The accounts that were invited and have not answered."]
    applications: Annotated[list[str], "The accounts that ask to join."]


class ShownAccount(TypedDict):
    """An account."""

    account: Annotated[str, "The account."]
    groups: Annotated[int, "The number of its groups."]
    logged_in: Annotated[bool, "Whether it has logged in before."]


class AccountList(TypedDict):
    """The newest accounts."""

    total: Annotated[int, "The number of all accounts."]
    accounts: Annotated[list[ShownAccount], "The newest, at most 200."]


class ShownTask(TypedDict):
    """A call task."""

    task_id: Annotated[str, "The id."]
    name: Annotated[str, "The name."]
    description: Annotated[str | None, "The description."]
    bot_id: Annotated[int, "The bot that calls."]
    caller: Annotated[str | None, "The calling number."]
    first_day: Annotated[str, "The first day, as ISO 8601."]
    last_day: Annotated[str, "The last day, as ISO 8601."]
    max_concurrent: Annotated[int, "The most calls at a time."]
    policies: Annotated[list[str], "The names of its no-call policies."]
    created: Annotated[str, "When it was created, as ISO 8601."]
    may_call: Annotated[bool | None, "Whether it may call now; null if this depends on the dialect."]


class TaskList(TypedDict):
    """The newest call tasks."""

    total: Annotated[int, "The number of all tasks."]
    tasks: Annotated[list[ShownTask], "The newest, at most 200."]


class FaultCounts(TypedDict):
    """What a fault did so far."""

    matched: Annotated[int, "The requests, or messages, that it applies to."]
    happened: Annotated[int, "Those that it happened to."]


class ShownAttempt(TypedDict):
    """An attempt to deliver a message."""

    at: Annotated[float, "Seconds of the emulator's clock."]
    took: Annotated[float, "The seconds until it ended."]
    attempt: Annotated[int, "Its number among the attempts of the message."]
    duplicate: Annotated[int, "0, or the number of the copy that a fault made of it."]
    status: Annotated[int | None, "The status of the answer; null without one."]
    reason: Annotated[str | None, "Why there is no answer."]
    trouble: Annotated[list[str], "The faults that happened to it."]
    headers: Annotated[dict[str, str], "The headers as sent; dots in the place of a secret."]


class ShownMessage(TypedDict):
    """A copied message with its attempts."""

    number: Annotated[int, "The number of the message."]
    message_id: Annotated[str, "Its id, msgId in the copy."]
    key: Annotated[str, "The key by which a receiver recognises it."]
    event: Annotated[dict[str, Any], "The document that was sent."]
    body: Annotated[str, "The body that was sent."]
    attempts: Annotated[list[ShownAttempt], "The attempts, the oldest first."]


class MessageList(TypedDict):
    """The latest copied messages."""

    waiting: Annotated[int, "The queues in which copies wait."]
    messages: Annotated[list[ShownMessage], "The latest, at most 200."]


class DeliveredAgain(TypedDict):
    """A message that is delivered again."""

    number: Annotated[int, "The number of the message."]
