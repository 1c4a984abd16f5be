"""Event classes: one frozen class per ``msgType``, with typed fields.

Interface: Events, Conversation message event body. The platform may omit fields, so every field has a default; absent,
null and empty values are equal, and ``document`` tells them apart. An unknown word stays a string; an event with an unknown
``eventType``, ``convType`` or ``msgType`` is an :class:`UnknownEvent`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from attrs import field, frozen

from rbim._support.text import empty
from rbim.callbacks.events.enums import ClientType, ConvType, MsgType, Notice
from rbim.callbacks.events.fields import NO_ACCOUNT, Account, account, accounts, flag, msg_type
from rbim.operations.base import Answer, wire
from rbim.wire.quirks import as_it_is, read_text

__all__ = [
    "DOCUMENT",
    "IN_GROUPS",
    "At",
    "Audio",
    "Event",
    "File",
    "FileCompress",
    "Link",
    "Location",
    "Message",
    "Notification",
    "Picture",
    "TeamAddAdmin",
    "TeamApply",
    "TeamApplyAccept",
    "TeamApplyReject",
    "TeamDismiss",
    "TeamInvite",
    "TeamInviteAccept",
    "TeamInviteReject",
    "TeamJoin",
    "TeamKick",
    "TeamMemberUpdate",
    "TeamQuit",
    "TeamRoleUpdate",
    "TeamUpdate",
    "Text",
    "UnknownEvent",
    "Video",
    "class_names",
    "conversation_of",
    "event_class",
]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DOCUMENT = "rbim:document"
"""The key under which the parser passes the whole document to an event."""


@frozen(kw_only=True)
class Event(Answer):
    """The base class of all events that the platform sends. Every event is of one of its subclasses.

    ``conv_type`` and ``msg_type`` are its kind. ``to`` is the receiver's account (``PERSON``), the group (``TEAM``,
    ``CUSTOM_TEAM``, ``NOTIFY_TEAM``) or the text ``REST`` (``CUSTOM_PERSON``, whose receivers are ``t_members``).
    ``from_account`` is the sender, or the account that caused a notification. ``msg_timestamp`` is in milliseconds since
    1970-01-01 00:00:00 UTC (None if its text, kept in ``msg_timestamp_text``, is not a number); :attr:`sent_at` is the same
    as a datetime. ``body`` is the text, ``attach`` the address of an attachment. Flags: ``resend_flag``: the platform sends
    it again; ``custom_save_flag``: it is stored for receivers that are offline; ``custom_apns_flag``: they get a push
    notification, with ``custom_apns_text``; ``antispam``: the check for black words matched. ``extra`` has the fields that
    are not in the description. ``document`` is the whole JSON object of a parsed event, as the platform wrote it: it tells
    absent, null and empty fields apart (``"antispam" in event.document`` is whether the check for black words is on). It
    does not count when events are compared.
    """

    type_name: ClassVar[str] = ""
    """The ``msgType`` of a class; empty if the class has several."""

    event_type: str = field(default="1", metadata=wire(read=read_text))
    conv_type: ConvType | str | None = None
    to: str = ""
    from_account: Account = field(default=NO_ACCOUNT, metadata=wire(read=account))
    from_client_type: ClientType | str | None = None
    from_device_id: str = ""
    from_nick: str = ""
    msg_timestamp: int | None = None
    msg_timestamp_text: str = field(default="", repr=False, metadata=wire("msgTimestamp"))
    msg_type: MsgType | Notice | str | None = field(default=None, metadata=wire(read=msg_type))
    body: str = ""
    attach: str = ""
    msg_id: str = ""
    resend_flag: bool = field(default=False, metadata=wire(read=flag))
    custom_save_flag: bool = field(default=False, metadata=wire(read=flag))
    custom_apns_flag: bool = field(default=False, metadata=wire(read=flag))
    custom_apns_text: str = ""
    t_members: tuple[Account, ...] = field(default=(), metadata=wire(read=accounts))
    at_user: tuple[Account, ...] = field(default=(), metadata=wire(read=accounts))
    ext: str = ""
    link_info: str = ""
    antispam: bool = field(default=False, metadata=wire(read=flag))
    extra: Mapping[str, Any] = field(factory=empty, hash=False)
    # the key must never match a field of the platform, so that no field of the platform can be read as this one
    document: Mapping[str, Any] = field(factory=empty, eq=False, repr=False, metadata=wire(DOCUMENT, read=as_it_is))

    @property
    def sent_at(self) -> datetime | None:
        """The time at which it was sent, in UTC; None if ``msg_timestamp`` is missing or out of range."""
        try:
            return None if self.msg_timestamp is None else EPOCH + timedelta(milliseconds=self.msg_timestamp)
        except OverflowError:
            return None

    @property
    def group_id(self) -> str | None:
        """The group that the event belongs to; None between individuals."""
        return self.to if self.conv_type in IN_GROUPS else None

    @property
    def conversation(self) -> str:
        """The conversation's name: ``team/<group>``, or ``person/<account>|<account>`` in alphabetical order.

        A push to several accounts belongs to the conversation of its sender and ``REST``. Empty if the fields are missing.
        """
        return conversation_of(self.conv_type, self.to, self.from_account, self.t_members)


def conversation_of(conv_type: str | None, to: str, sender: Account, members: tuple[Account, ...]) -> str:
    """Return the name of a conversation; see :attr:`Event.conversation`."""
    if conv_type in IN_GROUPS:
        return f"team/{to}" if to else ""
    pushed_to_one = conv_type == ConvType.CUSTOM_PERSON and len(members) == 1
    both = sorted((sender.user, (members[0] if pushed_to_one else Account.of(to)).user))
    return f"person/{'|'.join(both)}" if any(both) else ""


IN_GROUPS = frozenset({ConvType.TEAM, ConvType.CUSTOM_TEAM, ConvType.NOTIFY_TEAM})


class Message(Event):
    """A message between two users, in a group, or pushed over REST."""

    __slots__ = ()


class Text(Message):
    """A text message: ``body`` is the text."""

    __slots__ = ()
    type_name = MsgType.TEXT


class Picture(Message):
    """A picture, at ``attach``."""

    __slots__ = ()
    type_name = MsgType.PICTURE


class Audio(Message):
    """A recording, at ``attach``."""

    __slots__ = ()
    type_name = MsgType.AUDIO


class Video(Message):
    """A video, at ``attach``."""

    __slots__ = ()
    type_name = MsgType.VIDEO


class Location(Message):
    """A place. The description does not name the field that holds it."""

    __slots__ = ()
    type_name = MsgType.LOCATION


class File(Message):
    """A file, at ``attach``."""

    __slots__ = ()
    type_name = MsgType.FILE


class FileCompress(Message):
    """A compressed file, at ``attach``."""

    __slots__ = ()
    type_name = MsgType.FILE_COMPRESS


class Link(Message):
    """A link: ``link_info`` has its content."""

    __slots__ = ()
    type_name = MsgType.LINK


class At(Message):
    """A message that mentions the accounts in ``at_user``."""

    __slots__ = ()
    type_name = MsgType.AT


class Notification(Event):
    """A notification of a group's change (``NOTIFY_TEAM``): ``to`` is the group, ``t_members`` the accounts concerned.

    The description does not name the operation that causes each notification; the emulator's choice is
    ``Dialect.notifications``.
    """

    __slots__ = ()


class TeamApply(Notification):
    """An account applied to join."""

    __slots__ = ()
    type_name = Notice.TEAM_APPLY


class TeamInvite(Notification):
    """An account was invited to join."""

    __slots__ = ()
    type_name = Notice.TEAM_INVITE


class TeamJoin(Notification):
    """An account joined directly."""

    __slots__ = ()
    type_name = Notice.TEAM_JOIN


class TeamDismiss(Notification):
    """The group was dissolved."""

    __slots__ = ()
    type_name = Notice.TEAM_DISMISS


class TeamQuit(Notification):
    """A member left."""

    __slots__ = ()
    type_name = Notice.TEAM_QUIT


class TeamKick(Notification):
    """A member was removed."""

    __slots__ = ()
    type_name = Notice.TEAM_KICK


class TeamApplyAccept(Notification):
    """An application to join was accepted."""

    __slots__ = ()
    type_name = Notice.TEAM_APPLY_ACCEPT


class TeamInviteAccept(Notification):
    """An invitation to join was accepted."""

    __slots__ = ()
    type_name = Notice.TEAM_INVITE_ACCEPT


class TeamApplyReject(Notification):
    """An application to join was rejected."""

    __slots__ = ()
    type_name = Notice.TEAM_APPLY_REJECT


class TeamInviteReject(Notification):
    """An invitation to join was rejected."""

    __slots__ = ()
    type_name = Notice.TEAM_INVITE_REJECT


class TeamUpdate(Notification):
    """The group's information was updated."""

    __slots__ = ()
    type_name = Notice.TEAM_UPDATE


class TeamMemberUpdate(Notification):
    """A member's information was updated."""

    __slots__ = ()
    type_name = Notice.TEAM_MEMBER_UPDATE


class TeamAddAdmin(Notification):
    """The administrator left, and the nearest member was made administrator."""

    __slots__ = ()
    type_name = Notice.TEAM_ADD_ADMIN


class TeamRoleUpdate(Notification):
    """A member's role changed."""

    __slots__ = ()
    type_name = Notice.TEAM_ROLE_UPDATE


@frozen(kw_only=True)
class UnknownEvent(Event):
    """An event whose ``eventType``, ``convType`` or ``msgType``, or their combination, is not in the description.

    ``document`` is the whole JSON object, and counts when events are compared; the other fields are converted like those of
    any event.
    """

    document: Mapping[str, Any] = field(factory=empty, hash=False, metadata=wire(DOCUMENT, read=as_it_is))


_MESSAGES: dict[str, type[Event]] = {kind.type_name: kind for kind in Message.__subclasses__()}
_NOTIFICATIONS: dict[str, type[Event]] = {kind.type_name: kind for kind in Notification.__subclasses__()}
_CLASSES = {kind.value: _NOTIFICATIONS if kind is ConvType.NOTIFY_TEAM else _MESSAGES for kind in ConvType}


def event_class(event_type: object, conv_type: object, msg_type: object) -> type[Event]:
    """Return the class of an event, given its JSON values. A missing ``eventType`` counts as 1, a message."""
    if event_type != "1" and (event_type is True or event_type not in (None, "", 1)):
        return UnknownEvent
    if not isinstance(conv_type, str) or not isinstance(msg_type, str):
        return UnknownEvent
    return _CLASSES.get(conv_type, {}).get(msg_type, UnknownEvent)


def class_names(kind: type[Event]) -> frozenset[str]:
    """Return the names of a class of events and of all its subclasses."""
    return frozenset({kind.__name__}).union(*map(class_names, kind.__subclasses__()))
