"""The platform's words for what it copies: kinds of conversations, messages, notifications and clients.

Interface: Events, Conversation message event body. A receiver keeps a word outside these as the text it is.
"""

from enum import StrEnum

__all__ = ["ClientType", "ConvType", "MsgType", "Notice"]


class ConvType(StrEnum):
    """What kind of conversation a message belongs to."""

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
    """What kind of message somebody sends."""

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
    """What kind of message a group's members get when the group changes."""

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
    """What the sender's client runs on (``fromClientType``)."""

    ANDROID = "Android"
    IOS = "IOS"
    IPAD = "IPAD"
    ANDROID_PAD = "Android PAD"
    PC = "PC"
    H5 = "H5"
    MAC = "MAC"
    REST = "REST"
