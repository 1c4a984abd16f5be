"""The platform's operations, and the tools to declare new ones."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.operations.base import (
        Answer as Answer,
        Endpoint as Endpoint,
        Operation as Operation,
        Repeat as Repeat,
        Spec as Spec,
        Wire as Wire,
        camel as camel,
        described as described,
        description_of as description_of,
        fields_of as fields_of,
        operation as operation,
        wire as wire,
        wire_name as wire_name,
        wire_of as wire_of,
    )
    from rbim.operations.call_tasks import (
        Calls as Calls,
        CallTaskCreated as CallTaskCreated,
        CreateCallTask as CreateCallTask,
        Dates as Dates,
        Hours as Hours,
        NoCallPolicy as NoCallPolicy,
        PolicyType as PolicyType,
        Weekday as Weekday,
        Weekdays as Weekdays,
        default_no_call_policies as default_no_call_policies,
    )
    from rbim.operations.fails import Fail as Fail
    from rbim.operations.groups import (
        GROUP as GROUP,
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
    from rbim.validators import (
        Accounts as Accounts,
        accounts as accounts,
        each_account as each_account,
        one_of as one_of,
        text as text,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
