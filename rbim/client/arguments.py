"""The arguments of a client: checked, with their defaults made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from rbim.client.limits import Limits
from rbim.credentials import Credentials
from rbim.errors import InvalidRequest
from rbim.validators import require, require_clock, require_methods, require_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from rbim.client.observers import Observer, Observers
    from rbim.clock import Clock
    from rbim.credentials import CredentialsProvider
    from rbim.dialect import Dialect
    from rbim.http import Request, Signer, Transport

__all__ = [
    "Unasked",
    "Url",
    "check",
    "dialect_of",
    "observers_of",
    "provider_of",
    "signer_of",
    "signing",
    "transport_of",
    "url_text",
]


class Url(Protocol):
    """An address as an object of another library: pydantic's ``AnyHttpUrl``, httpx's ``URL``, yarl's."""

    @property
    def scheme(self) -> str:
        """The scheme, such as ``https``."""
        ...

    @property
    def host(self) -> str | None:
        """The host."""
        ...


def url_text(url: str | Url | None) -> str | None:
    """Return an address as text; anything else is left as it is, for the codec to refuse."""
    named = not isinstance(url, (str, type)) and hasattr(url, "scheme") and hasattr(url, "host")
    return str(url) if named else cast("str | None", url)


def provider_of(credentials: object) -> CredentialsProvider | None:
    """Return a provider of credentials, or None if they are given as they are, or not at all."""
    known = credentials is None or isinstance(credentials, (Credentials, type)) or not callable(credentials)
    return None if known else cast("CredentialsProvider", credentials)


class Unasked:
    """The signer of a client whose provider was not asked yet."""

    app_id = ""

    def __init__(self, provider: CredentialsProvider) -> None:
        self.provider = provider

    def sign(self, _: Request, /) -> NoReturn:
        """Raise AssertionError: a call begins only after the provider was asked."""
        raise AssertionError


def signer_of(credentials: object, signer: Signer | None, sign_with: Callable[[Credentials], Signer]) -> Signer:
    """Return the signer. Raises InvalidRequest unless exactly one of credentials and a signer is given."""
    if signer is not None and credentials is None:
        require_methods("signer", signer, ("sign",), "a signer such as AppSigner(credentials)")
        require("signer.app_id", getattr(signer, "app_id", None), str, "a text")
        return signer
    if credentials is None or signer is not None:
        raise InvalidRequest(
            "credentials: give either credentials=Credentials(app_id=..., app_token=...) or signer=, not both",
            field="credentials",
        )
    if (provider := provider_of(credentials)) is not None:
        return Unasked(provider)
    require("credentials", credentials, Credentials, "Credentials(app_id=..., app_token=...)")
    return sign_with(cast("Credentials", credentials))


def signing(clock: Clock, dialect: Dialect) -> Callable[[Credentials], Signer]:
    """Return the function that makes a signer of credentials."""

    def sign_with(credentials: Credentials) -> Signer:
        from rbim.wire.signing import AppSigner

        return AppSigner(credentials, clock=clock, zone=dialect.zone)

    return sign_with


def dialect_of(dialect: Dialect | None) -> Dialect:
    """Return the dialect, or the default."""
    from rbim.dialect import Dialect

    if dialect is None:
        return Dialect()
    require("dialect", dialect, Dialect, "Dialect(...)")
    return dialect


def check(*, limits: object, clock: object, hooks: object, name: object) -> None:
    """Raise InvalidRequest for an argument of the wrong kind."""
    require_name("name", name)
    require("limits", limits, Limits, "Limits(concurrency=..., rates=[...])")
    require_clock(clock)
    if hooks is not None:
        require_methods("hooks", hooks, ("__call__",), "a function of a cattrs converter")


EVENTS = ("call_started", "attempt_started", "attempt_ended", "call_ended")


def observers_of(observers: Iterable[Observer]) -> Observers | None:
    """Return the observers; None if there are none."""
    require_methods("observers", observers, ("__iter__",), "a list of observers, such as [LoggingObserver()],")
    listed = tuple(observers)
    for each in listed:
        if isinstance(each, type) or not any(hasattr(each, name) for name in EVENTS):
            require_methods("observers", each, EVENTS, "a list of observers, such as [LoggingObserver()],")
    if not listed:
        return None
    from rbim.client.observers import Observers

    return Observers(listed)


def transport_of(given: Transport | str | None) -> Transport:
    """Return a transport, also one that is given by its name."""
    if given is not None and not isinstance(given, str):
        form = "a transport, such as HttpxTransport(), or a name, such as 'httpx',"
        require_methods("transport", given, ("send", "__aenter__", "__aexit__"), form)
        return given
    from rbim.transports.auto import transport_named

    return transport_named("httpx" if given is None else given)
