"""The platform's words in events: kinds of conversations, messages, notifications and clients.

Interface: Events, Conversation message event body. An unknown word stays a plain string.
"""

from enum import StrEnum

__all__ = ["ClientType", "ConvType", "MsgType", "Notice"]


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
