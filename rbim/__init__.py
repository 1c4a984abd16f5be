"""An asyncio client SDK, with pluggable transports, for a Chinese communications platform.

It covers the group operations of instant messaging, automated outbound-call tasks, and signed callbacks (the platform's
"message copy"). Public names are imported on first use (PEP 562), so that ``import rbim`` alone is fast. Use
``rbim.operations`` to declare new operations.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

__version__ = "0.2.0rc1"

if TYPE_CHECKING:
    from rbim.client.call import Exchange as Exchange
    from rbim.client.client import AsyncClient as AsyncClient, ClientOptions as ClientOptions, View as View
    from rbim.client.fan_out import Done as Done, Failed as Failed, fan_out as fan_out
    from rbim.client.limits import Limits as Limits, Rate as Rate
    from rbim.client.observers import (
        AttemptEnded as AttemptEnded,
        AttemptStarted as AttemptStarted,
        CallEnded as CallEnded,
        CallStarted as CallStarted,
    )
    from rbim.client.retry import Retry as Retry
    from rbim.client.shared import Load as Load
    from rbim.clock import Clock as Clock, SystemClock as SystemClock
    from rbim.codes import CODES as CODES, Code as Code, Grade as Grade
    from rbim.credentials import Credentials as Credentials
    from rbim.dialect import (
        CHINA as CHINA,
        Character as Character,
        Dialect as Dialect,
        MembersShape as MembersShape,
        OutOfTime as OutOfTime,
        TimeUnit as TimeUnit,
    )
    from rbim.errors import (
        AlreadyMember as AlreadyMember,
        AnswerTooLarge as AnswerTooLarge,
        ApiError as ApiError,
        Attempt as Attempt,
        AuthenticationError as AuthenticationError,
        CallbackRejected as CallbackRejected,
        ClientClosed as ClientClosed,
        DeadlineExceeded as DeadlineExceeded,
        IntermediaryError as IntermediaryError,
        InvalidRequest as InvalidRequest,
        NotFound as NotFound,
        NotMember as NotMember,
        NotSent as NotSent,
        Outcome as Outcome,
        ProtocolError as ProtocolError,
        RbimError as RbimError,
        ServerTrouble as ServerTrouble,
        Throttled as Throttled,
        TimestampExpired as TimestampExpired,
        TransportError as TransportError,
        Unanswered as Unanswered,
    )
    from rbim.http import Request as Request, Response as Response, Signer as Signer, Transport as Transport
    from rbim.observers import (
        LoggingObserver as LoggingObserver,
        Observation as Observation,
        Observer as Observer,
    )
    from rbim.operations.base import Answer as Answer, Endpoint as Endpoint, Operation as Operation, Repeat as Repeat
    from rbim.operations.call_tasks import (
        CallPolicy as CallPolicy,
        Calls as Calls,
        CallTaskCreated as CallTaskCreated,
        CreateCallTask as CreateCallTask,
        NoCallPolicy as NoCallPolicy,
        Weekday as Weekday,
        default_no_call_policies as default_no_call_policies,
    )
    from rbim.operations.fails import Fail as Fail
    from rbim.operations.groups import (
        Created as Created,
        CreateGroup as CreateGroup,
        DeleteGroup as DeleteGroup,
        DeleteGroupMember as DeleteGroupMember,
        GroupDetail as GroupDetail,
        GroupFound as GroupFound,
        GroupOperation as GroupOperation,
        Groups as Groups,
        GroupsFound as GroupsFound,
        GroupType as GroupType,
        Invited as Invited,
        InvitedAll as InvitedAll,
        InviteJoinGroup as InviteJoinGroup,
        JoinGroup as JoinGroup,
        LogoutGroup as LogoutGroup,
        ModifyGroup as ModifyGroup,
        Permission as Permission,
        QueryGroupDetail as QueryGroupDetail,
        RemovedAll as RemovedAll,
        Role as Role,
        SearchPublicGroups as SearchPublicGroups,
        SetMemberRole as SetMemberRole,
        Success as Success,
        Target as Target,
    )
    from rbim.operations.namespace import Method as Method, Namespace as Namespace, Sender as Sender
    from rbim.wire.signing import AppSigner as AppSigner
else:
    __getattr__, __dir__ = lazy_names(__name__)
