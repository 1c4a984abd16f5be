"""The configuration as commands use it, and the one place that makes a client for them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rbim.cli.errors import complain
from rbim.cli.extras import MissingExtra
from rbim.cli.global_flags import current_flags
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator

    from rbim.client.client import AsyncClient
    from rbim.config.config import Config
    from rbim.credentials import Credentials

__all__ = ["HOW", "callback_credentials", "configuration", "make_client", "pacing"]

HOW = (
    "Configure RBIM_BASE_URL, RBIM_APP_ID, RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) and RBIM_USER_NAME, or a profile of "
    "rbim.toml: `rbim config show` says what is known."
)


def configuration() -> Config:
    """Return what flags, environment and files say. Raises InvalidRequest."""
    from rbim.config.config import load

    flags = current_flags()
    with _hinting():
        return load(flags.profile, flags.config, warn=_warn, base_url=flags.base_url, transport=flags.transport)


def make_client(config: Config | None = None, **options: Any) -> AsyncClient:  # the constructor's own
    """Make the client of a command. Raises InvalidRequest, and MissingExtra where the transport needs one."""
    if current_flags().debug:
        from rbim.client.observers import LoggingObserver

        options["observers"] = (*options.get("observers", ()), LoggingObserver())
    config = config or configuration()
    try:
        with _hinting():
            return config.client(**options)
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error)) from None


def pacing(config: Config) -> dict[str, Any]:
    """Return the settings of a job that are configured: its rates, and how many requests may be in flight."""
    return {key: config[key] for key in ("concurrency", "rates") if not config.values[key].source.is_default}


def callback_credentials() -> tuple[Credentials, ...]:
    """Return all credentials that message copies may be signed with. Raises InvalidRequest."""
    config = configuration()
    with _hinting():
        return config.callback_credentials()


def _warn(text: str) -> None:
    complain(f"warning: {text}")


@contextmanager
def _hinting() -> Generator[None]:
    """Say how to configure where something of the configuration is missing or wrong."""
    try:
        yield
    except InvalidRequest as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(HOW)
        raise
