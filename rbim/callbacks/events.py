"""Events: the platform's words, one frozen class per ``msgType`` with typed fields, and the parser of a delivery's body.

Interface: Events, Conversation message event body. The platform may omit fields, so every field has a default; absent,
null and empty values are equal, and ``document`` tells them apart. An unknown word stays a string; an event with an unknown
``eventType``, ``convType`` or ``msgType`` is an :class:`UnknownEvent`.
"""

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, cast

from attrs import evolve, field, frozen
from cattrs import Converter
from cattrs.fns import identity

from rbim._support import json
from rbim._support.text import empty
from rbim.dialect import Dialect, MembersShape, TimeUnit
from rbim.errors import CallbackRejected
from rbim.operations.base import Answer, wire
from rbim.wire.converter import make_converter
from rbim.wire.quirks import read_text

__all__ = [
    "DOCUMENT",
    "IN_GROUPS",
    "NO_ACCOUNT",
    "Account",
    "At",
    "Audio",
    "ClientType",
    "ConvType",
    "Event",
    "File",
    "FileCompress",
    "Link",
    "Location",
    "Message",
    "MsgType",
    "Notice",
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
    "account",
    "accounts",
    "as_utf8",
    "class_names",
    "conversation_of",
    "document_of",
    "event_class",
    "flag",
    "msg_type",
    "parse",
    "without_surrogates",
]

# ------------------------------------------------------------------------------------------------------ the platform's words


class ConvType(StrEnum):
    """The kind of a message's conversation (``convType``)."""

    PERSON = "PERSON"
    """One-to-one."""

    TEAM = "TEAM"
    """Group chat."""

    CUSTOM_PERSON = "CUSTOM_PERSON"
    """REST push to individuals."""

    CUSTOM_TEAM = "CUSTOM_TEAM"
    """REST push to a group."""

    NOTIFY_TEAM = "NOTIFY_TEAM"
    """Group notification."""


class MsgType(StrEnum):
    """The kind of a message that a user sends (``msgType``)."""

    TEXT = "TEXT"
    PICTURE = "PICTURE"
    AUDIO = "AUDIO"
    VIDEO = "VIDEO"
    LOCATION = "LOCATION"
    FILE = "FILE"
    FILE_COMPRESS = "FILE_COMPRESS"
    LINK = "LINK"
    AT = "AT"


class Notice(StrEnum):
    """The kind of a notification to a group's members when the group changes (``msgType``)."""

    TEAM_APPLY = "TEAM_APPLY"
    TEAM_INVITE = "TEAM_INVITE"
    TEAM_JOIN = "TEAM_JOIN"
    TEAM_DISMISS = "TEAM_DISMISS"
    TEAM_QUIT = "TEAM_QUIT"
    TEAM_KICK = "TEAM_KICK"
    TEAM_APPLY_ACCEPT = "TEAM_APPLY_ACCEPT"
    TEAM_INVITE_ACCEPT = "TEAM_INVITE_ACCEPT"
    TEAM_APPLY_REJECT = "TEAM_APPLY_REJECT"
    TEAM_INVITE_REJECT = "TEAM_INVITE_REJECT"
    TEAM_UPDATE = "TEAM_UPDATE"
    TEAM_MEMBER_UPDATE = "TEAM_MEMBER_UPDATE"
    TEAM_ADD_ADMIN = "TEAM_ADD_ADMIN"
    TEAM_ROLE_UPDATE = "TEAM_ROLE_UPDATE"


class ClientType(StrEnum):
    """The platform of the sender's client (``fromClientType``)."""

    ANDROID = "Android"
    IOS = "IOS"
    IPAD = "IPAD"
    ANDROID_PAD = "Android PAD"
    PC = "PC"
    H5 = "H5"
    MAC = "MAC"
    REST = "REST"


# ------------------------------------------------ converters of fields, one for each quirk: above each, the text on the wire


@frozen
class Account:
    """An account as the platform writes it: ``<application_id>#<user_account>``.

    ``app_id`` is None if the text has no ``#``, which is common. ``str()`` returns the original text.
    """

    app_id: str | None
    user: str

    def __str__(self) -> str:
        return self.user if self.app_id is None else f"{self.app_id}#{self.user}"

    @classmethod
    def of(cls, text: str) -> "Account":
        """Return the account of a text, split at the first ``#``."""
        app_id, number_sign, user = text.partition("#")
        return cls(app_id, user) if number_sign else cls(None, text)


NO_ACCOUNT = Account(None, "")


# `"fromAccount": "aaf98f...#1001"`, `"fromAccount": "1001"`
def account(value: Any) -> Account:  # JSON
    """Convert an account."""
    return Account.of(read_text(value))


# `"tMembers": ["aaf98f...#1001", "aaf98f...#1002"]`, the older nesting `{"member": [...]}`, a single text,
# objects `[{"userName": "1001", "nickName": "..."}]`, and each of them as JSON in a text: `"[\\"1001\\"]"`
def accounts(value: Any) -> tuple[Account, ...]:  # JSON
    """Convert a list of accounts, in any shape: texts, objects, or JSON in a text, nested in any way.

    Of an object with a name for an account, such as ``userName``, only that counts; of any other, all values.
    """
    return tuple(account(each) for each in _leaves(value, _ACCOUNTS) if each not in (None, ""))


# `"resendFlag": "1"`, `"resendFlag": 1`, `"resendFlag": ""`, `"antispam": "true"`,
# `"antispam": {"hit": true, "label": "ad"}`
def flag(value: Any) -> bool:  # JSON
    """Convert a flag: False for zero, empty values and words such as "false", "no" and "null"; otherwise True.

    Of a list or an object, also as JSON in a text, one value that is True is enough. Of an object with a name for a flag,
    such as ``hit``, only that counts.
    """
    if value in (None, "", "0", "1"):  # nearly always one of these
        return bool(value == "1")
    return any(map(_is_set, _leaves(value, _FLAGS)))


def _is_set(value: Any) -> bool:  # JSON
    text = read_text(value).strip().lower()
    try:
        return float(text) != 0
    except ValueError:
        return text not in _NO


_NO = frozenset({"", "false", "no", "off", "null", "none"})
_ACCOUNTS = ("member", "members", "account", "useraccount", "username", "user", "userid", "memberid")
_FLAGS = ("antispam", "hit", "ishit", "matched", "spam", "isspam", "flag", "value", "result")


def _leaves(value: Any, names: Collection[str]) -> Iterator[Any]:  # JSON
    """Yield the single values of a JSON value in order, also those of JSON in a text.

    Of an object with one of the names, in any case and first come first, only the value of that name counts.
    """
    pending = [value]
    while pending:  # no recursion: JSON in a text may be nested deeply
        value = pending.pop()
        if isinstance(value, str) and value.lstrip().startswith(("[", "{", '"')):
            try:
                pending.append(without_surrogates(json.loads(value.encode())))
            except (ValueError, RecursionError):  # a text that only begins like JSON
                yield value
        elif isinstance(value, list):
            pending.extend(reversed(cast("Sequence[Any]", value)))
        elif isinstance(value, dict):
            pending.extend(reversed(_values(cast("dict[str, Any]", value), names)))
        else:
            yield value


def _values(fields: Mapping[str, Any], names: Collection[str]) -> list[Any]:  # JSON
    by_name = {name.replace("_", "").lower(): value for name, value in fields.items()}
    named = next((name for name in names if name in by_name), None)
    return list(fields.values()) if named is None else [by_name[named]]


# `"fromNick": "\ud83d"`
def without_surrogates(value: Any) -> Any:  # JSON
    """Replace lone surrogates in every text by U+FFFD: no store can hold them."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return value
    if isinstance(value, list):
        return [without_surrogates(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(each) for key, each in cast("Mapping[str, Any]", value).items()}
    return value


_KINDS: dict[str, MsgType | Notice] = {each.value: each for kind in (MsgType, Notice) for each in kind}


# `"msgType": "TEXT"`, `"msgType": "TEAM_JOIN"`, `"msgType": "TEAM_MUTE"`
def msg_type(value: Any) -> MsgType | Notice | str:  # JSON
    """Convert a ``msgType`` to a member of MsgType or Notice, or keep an unknown text."""
    text = read_text(value)
    return _KINDS.get(text, text)


# --------------------------------------------------------------------------------------------------------------- the classes

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
    """The ``msgType`` of a class, which is its name in the platform's spelling; empty if the class has several."""

    def __init_subclass__(cls) -> None:
        word = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        if word in _KINDS:
            cls.type_name = _KINDS[word]

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
    document: Mapping[str, Any] = field(factory=empty, eq=False, repr=False, metadata=wire(DOCUMENT, read=identity))

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


class Text(Message):
    """A text message: ``body`` is the text."""


class Picture(Message):
    """A picture, at ``attach``."""


class Audio(Message):
    """A recording, at ``attach``."""


class Video(Message):
    """A video, at ``attach``."""


class Location(Message):
    """A place. The description does not name the field that holds it."""


class File(Message):
    """A file, at ``attach``."""


class FileCompress(Message):
    """A compressed file, at ``attach``."""


class Link(Message):
    """A link: ``link_info`` has its content."""


class At(Message):
    """A message that mentions the accounts in ``at_user``."""


class Notification(Event):
    """A notification of a group's change (``NOTIFY_TEAM``): ``to`` is the group, ``t_members`` the accounts concerned.

    The description does not name the operation that causes each notification; the emulator's choice is
    ``Dialect.notifications``.
    """


class TeamApply(Notification):
    """An account applied to join."""


class TeamInvite(Notification):
    """An account was invited to join."""


class TeamJoin(Notification):
    """An account joined directly."""


class TeamDismiss(Notification):
    """The group was dissolved."""


class TeamQuit(Notification):
    """A member left."""


class TeamKick(Notification):
    """A member was removed."""


class TeamApplyAccept(Notification):
    """An application to join was accepted."""


class TeamInviteAccept(Notification):
    """An invitation to join was accepted."""


class TeamApplyReject(Notification):
    """An application to join was rejected."""


class TeamInviteReject(Notification):
    """An invitation to join was rejected."""


class TeamUpdate(Notification):
    """The group's information was updated."""


class TeamMemberUpdate(Notification):
    """A member's information was updated."""


class TeamAddAdmin(Notification):
    """The administrator left, and the nearest member was made administrator."""


class TeamRoleUpdate(Notification):
    """A member's role changed."""


@frozen(kw_only=True)
class UnknownEvent(Event):
    """An event whose ``eventType``, ``convType`` or ``msgType``, or their combination, is not in the description.

    ``document`` is the whole JSON object, and counts when events are compared; the other fields are converted like those of
    any event.
    """

    document: Mapping[str, Any] = field(factory=empty, hash=False, metadata=wire(DOCUMENT, read=identity))


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


# ---------------------------------------------------------------------------------------------------------------- the parser

MARKS = {  # those of UTF-32 first: one begins like a mark of UTF-16
    BOM_UTF32_LE: "utf-32-le",
    BOM_UTF32_BE: "utf-32-be",
    BOM_UTF8: "utf-8",
    BOM_UTF16_LE: "utf-16-le",
    BOM_UTF16_BE: "utf-16-be",
}


@cache
def _converter() -> Converter:
    return make_converter(UTC, MembersShape.PLAIN)


def parse(body: bytes, *, dialect: Dialect | None = None) -> Event:
    """Return the event in the body of a delivery. Verify the delivery first: this checks no signature.

    ``dialect`` has the unit of ``msgTimestamp`` (default: milliseconds).

    The document is UTF-8, or begins with a byte order mark (of UTF-8, UTF-16 or UTF-32). Of a duplicate key the last value
    counts. Control characters in texts are read. Emoji in CESU-8 are joined; lone surrogates (a nickname cut inside an
    emoji) and bytes that are not UTF-8 become U+FFFD, so that every text can be stored; a whole body may be GB18030. Raises
    CallbackRejected, and nothing else, if the bytes are not a JSON object, are nested more than 64 levels deep, or have a
    number out of range. Interface: Events, Conversation message event body.
    """
    fields = document_of(body)
    kind = event_class(fields.get("eventType"), fields.get("convType"), fields.get("msgType"))
    event: Event = _converter().structure({**fields, DOCUMENT: fields}, kind)
    if event.msg_timestamp is None or dialect is None or dialect.message_time_unit is TimeUnit.MILLISECONDS:
        return event
    return evolve(event, msg_timestamp=event.msg_timestamp * 1000)


def document_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a delivery's body. Raises CallbackRejected like :func:`parse`."""
    plain = json.loads_plain(body)
    if plain is not None:  # none of the special cases below is in it, including lone surrogates
        return plain
    try:
        document, text = json.loads_repaired(as_utf8(body))
    except json.NotJson as error:
        raise _unreadable(str(error), body) from None
    if b"\\u" in text:
        document = without_surrogates(document)
    if not isinstance(document, dict):
        cause = f"it must be a JSON object, not {type(document).__name__}"
        raise _unreadable(cause, body)
    return cast("dict[str, Any]", document)


def as_utf8(body: bytes) -> bytes:
    """Return a body that begins with a byte order mark as UTF-8 without the mark; any other body unchanged."""
    for mark, encoding in MARKS.items():
        if body.startswith(mark):
            try:
                return body[len(mark) :].decode(encoding).encode()
            except UnicodeDecodeError:
                return body
    return body


def _unreadable(cause: str, body: bytes) -> CallbackRejected:
    return CallbackRejected(f"the body cannot be read: {cause}", reason="bad_format", body=body)
