"""The event bodies of copied messages, as the interface describes them ("Conversation message event body").

Built from the description's table alone, so that a receiver is tested against something that shares nothing with the code
under test. The dialect decides the unit of ``msgTimestamp`` (``message_time_unit``). ``tMembers`` lists the other members
for ``TEAM``, all members for ``CUSTOM_TEAM``, the receivers for ``CUSTOM_PERSON``, the accounts that a change of the group
concerns for ``NOTIFY_TEAM``. A text that is not given is absent, an empty text is empty.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from attrs import field, frozen
from attrs.converters import optional

from rbim.callbacks.events import ClientType, ConvType, MsgType
from rbim.dialect import TimeUnit
from rbim.emulator.documents import one_of
from rbim.validators import Accounts, accounts, each_account, text

__all__ = ["CopiedMessage", "Extras", "PushExtras", "milliseconds"]

CONVERSATION_MESSAGE = "1"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Extras(TypedDict, total=False):
    """Optional fields of a message, besides sender, receiver and text. Fields that are not given are absent from its body.

    The default of ``msg_type`` is ``TEXT``. ``attach`` is the address of an attachment, ``ext`` the extension field,
    ``at_user`` the accounts that are mentioned; ``nick``, ``client_type`` and ``device_id`` describe the sender;
    ``link_info`` is the content of a link message, ``antispam`` whether the check for black words hit the message.
    """

    msg_type: MsgType | str
    attach: str
    ext: str
    at_user: Accounts
    nick: str
    client_type: ClientType | str
    device_id: str
    link_info: str
    antispam: bool


class PushExtras(Extras, total=False):
    """Optional fields of a push, besides those of :class:`Extras`.

    ``save`` is whether it is stored for accounts that are offline, ``apns`` whether they are notified of it, ``apns_text``
    the text of that notification.
    """

    save: bool
    apns: bool
    apns_text: str


def _client_type(value: ClientType | str | None) -> ClientType | None:
    return None if value is None else ClientType(one_of(value, ClientType, "client_type"))


def _check_msg_type(message: "CopiedMessage", attribute: Any, value: str) -> None:  # an attrs validator
    if message.conv_type is not ConvType.NOTIFY_TEAM:
        one_of(value, MsgType, attribute.name)


def _check_accounts(message: "CopiedMessage", attribute: Any, value: tuple[str, ...] | None) -> None:  # an attrs validator
    pushed = attribute.name == "members" and message.conv_type is ConvType.CUSTOM_PERSON
    if value or pushed:
        each_account(message, attribute, value)


@frozen(kw_only=True)
class CopiedMessage:
    """One message, with the fields of the table; see :class:`Extras` and :class:`PushExtras`.

    ``members`` and ``at_user`` are bare accounts, as ``sender`` and ``to`` are. The ``msg_type`` of a notification is the
    dialect's, whether it is a :class:`~rbim.callbacks.Notice` or not.
    """

    conv_type: ConvType
    to: str = field(validator=text())
    sender: str = field(validator=text())
    msg_type: str = field(default=MsgType.TEXT, validator=_check_msg_type)
    text: str | None = None
    members: tuple[str, ...] | None = field(default=None, converter=optional(accounts), validator=_check_accounts)
    attach: str | None = None
    ext: str | None = None
    at_user: tuple[str, ...] | None = field(default=None, converter=optional(accounts), validator=_check_accounts)
    nick: str | None = None
    client_type: ClientType | None = field(default=None, converter=_client_type)
    device_id: str | None = None
    link_info: str | None = None
    antispam: bool | None = None
    save: bool | None = None
    apns: bool | None = None
    apns_text: str | None = None

    @property
    def key(self) -> str:
        """The conversation: a group's id, or two accounts in alphabetical order with ``|`` between them.

        A push to several accounts at once is in the conversation of its sender with ``REST``.
        """
        if self.conv_type is ConvType.CUSTOM_PERSON:
            other = self.members[0] if self.members and len(self.members) == 1 else self.to
        elif self.conv_type is ConvType.PERSON:
            other = self.to
        else:
            return self.to
        return "|".join(sorted((self.sender, other)))

    def body(self, *, app_id: str, msg_id: str, sent: datetime, unit: TimeUnit = TimeUnit.MILLISECONDS) -> dict[str, Any]:
        """Return the event body, in the order of the table, for ``json.dumps``."""
        timestamp = milliseconds(sent) // (1 if unit is TimeUnit.MILLISECONDS else 1000)

        def account(user: str) -> str:
            return f"{app_id}#{user}"

        def each(users: tuple[str, ...] | None) -> list[str] | None:
            return None if users is None else [account(user) for user in users]

        fields = {
            "eventType": CONVERSATION_MESSAGE,
            "convType": self.conv_type.value,
            "to": self.to,
            "fromAccount": account(self.sender),
            "fromClientType": self.client_type and self.client_type.value,
            "fromDeviceId": self.device_id,
            "fromNick": self.nick,
            "msgTimestamp": str(timestamp),
            "msgType": str(self.msg_type),
            "body": self.text,
            "attach": self.attach,
            "msgId": msg_id,
            "customSaveFlag": _flag(self.save, "0", "1"),
            "customApnsFlag": _flag(self.apns, "0", "1"),
            "customApnsText": self.apns_text,
            "tMembers": each(self.members),
            "atUser": each(self.at_user),
            "ext": self.ext,
            "linkInfo": self.link_info,
            "antispam": _flag(self.antispam, "false", "true"),
        }
        return {name: value for name, value in fields.items() if value is not None}


def _flag(value: bool | None, no: str, yes: str) -> str | None:  # noqa: FBT001  # three values: None is absent
    return None if value is None else (yes if value else no)


def milliseconds(moment: datetime) -> int:
    """Return the whole milliseconds from 1970-01-01 00:00:00 UTC to ``moment``."""
    return (moment - EPOCH) // timedelta(milliseconds=1)
