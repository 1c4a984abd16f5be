"""An asyncio client SDK, with pluggable transports, for a Chinese communications platform.

Group operations of its instant messaging, automated outbound-call tasks, and the signed message copy callback. The public
names are resolved when they are first used (PEP 562): importing the package alone costs next to nothing. What declares
operations of one's own is in ``rbim.operation``.
"""

from typing import TYPE_CHECKING

from rbim.lazy import homes, resolve

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rbim.bulk.fanout import Done, Failed, fan_out
    from rbim.call import Exchange
    from rbim.calls import (
        Calls,
        CallTaskCreated,
        CreateCallTask,
        NoCallPolicy,
        Weekday,
        default_no_call_policies,
    )
    from rbim.client import AsyncClient, View
    from rbim.clock import SystemClock
    from rbim.core import Load
    from rbim.dialect import CHINA, CODES, Code, Dialect, Grade, MembersShape
    from rbim.errors import (
        AlreadyMember,
        AnswerTooLarge,
        ApiError,
        AuthenticationError,
        CallbackRejected,
        ClientClosed,
        DeadlineExceeded,
        InvalidRequest,
        NotFound,
        NotMember,
        NotSent,
        Outcome,
        ProtocolError,
        RbimError,
        ServerTrouble,
        Throttled,
        TimestampExpired,
        TransportError,
        Unanswered,
    )
    from rbim.groups import (
        Created,
        CreateGroup,
        DeleteGroup,
        DeleteGroupMember,
        Fail,
        GroupDetail,
        GroupFound,
        GroupOperation,
        Groups,
        GroupsFound,
        GroupType,
        Invited,
        InviteJoinGroup,
        JoinGroup,
        LogoutGroup,
        ModifyGroup,
        Permission,
        QueryGroupDetail,
        Role,
        SearchPublicGroups,
        SetMemberRole,
        Success,
        Target,
    )
    from rbim.message import Attempt, Clock, Request, Response, Signer, Transport
    from rbim.observe import AttemptEnded, AttemptStarted, CallEnded, CallStarted, LoggingObserver, Observer
    from rbim.operation import Answer, Endpoint, Method, Namespace, Operation, Repeat, Sender
    from rbim.pace import Limits, Rate
    from rbim.retry import Retry
    from rbim.signing import AppSigner, Credentials

_HOME = {
    "rbim.bulk.fanout": "Done Failed fan_out",
    "rbim.call": "Exchange",
    "rbim.calls": "CallTaskCreated Calls CreateCallTask NoCallPolicy Weekday default_no_call_policies",
    "rbim.client": "AsyncClient View",
    "rbim.clock": "SystemClock",
    "rbim.core": "Load",
    "rbim.dialect": "CHINA CODES Code Dialect Grade MembersShape",
    "rbim.errors": "AlreadyMember AnswerTooLarge ApiError AuthenticationError CallbackRejected ClientClosed"
    " DeadlineExceeded InvalidRequest NotFound NotMember NotSent Outcome ProtocolError RbimError ServerTrouble"
    " Throttled TimestampExpired TransportError Unanswered",
    "rbim.groups": "CreateGroup Created DeleteGroup DeleteGroupMember Fail GroupDetail GroupFound GroupOperation"
    " GroupType Groups GroupsFound InviteJoinGroup Invited JoinGroup LogoutGroup ModifyGroup Permission"
    " QueryGroupDetail Role SearchPublicGroups SetMemberRole Success Target",
    "rbim.message": "Attempt Clock Request Response Signer Transport",
    "rbim.observe": "AttemptEnded AttemptStarted CallEnded CallStarted LoggingObserver Observer",
    "rbim.operation": "Answer Endpoint Method Namespace Operation Repeat Sender",
    "rbim.pace": "Limits Rate",
    "rbim.retry": "Retry",
    "rbim.signing": "AppSigner Credentials",
}
_WHERE = homes(_HOME)

__all__ = [
    "CHINA",
    "CODES",
    "AlreadyMember",
    "Answer",
    "AnswerTooLarge",
    "ApiError",
    "AppSigner",
    "AsyncClient",
    "Attempt",
    "AttemptEnded",
    "AttemptStarted",
    "AuthenticationError",
    "CallEnded",
    "CallStarted",
    "CallTaskCreated",
    "CallbackRejected",
    "Calls",
    "ClientClosed",
    "Clock",
    "Code",
    "CreateCallTask",
    "CreateGroup",
    "Created",
    "Credentials",
    "DeadlineExceeded",
    "DeleteGroup",
    "DeleteGroupMember",
    "Dialect",
    "Done",
    "Endpoint",
    "Exchange",
    "Fail",
    "Failed",
    "Grade",
    "GroupDetail",
    "GroupFound",
    "GroupOperation",
    "GroupType",
    "Groups",
    "GroupsFound",
    "InvalidRequest",
    "InviteJoinGroup",
    "Invited",
    "JoinGroup",
    "Limits",
    "Load",
    "LoggingObserver",
    "LogoutGroup",
    "MembersShape",
    "Method",
    "ModifyGroup",
    "Namespace",
    "NoCallPolicy",
    "NotFound",
    "NotMember",
    "NotSent",
    "Observer",
    "Operation",
    "Outcome",
    "Permission",
    "ProtocolError",
    "QueryGroupDetail",
    "Rate",
    "RbimError",
    "Repeat",
    "Request",
    "Response",
    "Retry",
    "Role",
    "SearchPublicGroups",
    "Sender",
    "ServerTrouble",
    "SetMemberRole",
    "Signer",
    "Success",
    "SystemClock",
    "Target",
    "Throttled",
    "TimestampExpired",
    "Transport",
    "TransportError",
    "Unanswered",
    "View",
    "Weekday",
    "__version__",
    "default_no_call_policies",
    "fan_out",
]


def __getattr__(name: str) -> object:
    return resolve(globals(), _WHERE, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
