"""Credentials that change while a client runs: a provider is asked for them.

The provider is called when the client is entered. When the platform refuses the credentials of a request, it is called
again, once for all requests that were refused for the same credentials; if it returns other ones, each of these requests is
signed and sent once more. That is safe for every operation: a refusal of the credentials has no effect.
"""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING, cast

from rbim._support.event_loops import spawn
from rbim._support.lazy_names import late_anyio
from rbim.credentials import Credentials
from rbim.errors import InvalidRequest
from rbim.validators import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio import Event

    from rbim.client.shared import SharedState
    from rbim.credentials import CredentialsProvider
    from rbim.http import Signer

__all__ = ["Rotation"]

logger = logging.getLogger("rbim")

LONGEST = 10.0
"""Seconds that the provider has for an answer while the client runs."""

PAUSE = 1.0
"""Seconds in which the provider is not asked again after it had nothing new."""


class Rotation:
    """The credentials of a client, from a provider. ``sign_with`` makes a signer of credentials."""

    def __init__(
        self, provider: CredentialsProvider, shared: SharedState, sign_with: Callable[[Credentials], Signer]
    ) -> None:
        self._provider = provider
        self._shared = shared
        self._sign_with = sign_with
        self._credentials: Credentials | None = None
        self._answered: Event | None = None
        self._task: object = None
        self._ask_after = -1e9

    async def begin(self) -> None:
        """Ask the provider for the first time. Raises what it raises, and InvalidRequest for anything but credentials."""
        self._use(await self._ask())
        self._shared.renewed = self.renewed

    async def renewed(self, refused: Signer) -> bool:
        """Return whether there are other credentials than those that were refused; the provider is asked if need be.

        The question has a task of its own: a caller that does not wait for the answer leaves it to the next one.
        """
        shared = self._shared
        if shared.signer is not refused:
            return True
        answered = self._answered
        if answered is None:
            if shared.clock.monotonic() < self._ask_after:
                return False
            answered = self._answered = cast("Event", late_anyio().Event())
            self._task = spawn(self._renew, name="rbim-credentials")
        await answered.wait()
        return shared.signer is not refused

    async def _renew(self) -> None:
        shared, answered = self._shared, self._answered
        credentials: Credentials | None = None
        try:
            with shared.clock.scope(LONGEST) as scope:
                shared.scopes.add(scope)  # closing the client ends the question
                try:
                    credentials = await self._ask()
                finally:
                    shared.scopes.discard(scope)
        except BaseException as error:  # also a cancelled future, or the end of the process, of the provider
            # without the text and the traceback of the error: they are not ours, and may hold a token
            logger.warning("%sthe provider of credentials failed: %s", _prefix(shared.name), type(error).__name__)
        if credentials is None or credentials == self._credentials:
            self._ask_after = shared.clock.monotonic() + PAUSE
        else:
            self._use(credentials)
        self._answered = None
        if answered is not None:
            answered.set()

    async def _ask(self) -> Credentials:
        given = self._provider()
        credentials = await given if isawaitable(given) else given
        require("credentials", credentials, Credentials, "a function that returns Credentials(app_id=..., app_token=...)")
        before = self._credentials
        if before is not None and before.app_id != credentials.app_id:
            raise InvalidRequest("credentials: the provider returned those of another application", field="credentials")
        return credentials

    def _use(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._shared.signer = self._sign_with(credentials)
        self._shared.codec.app_id = credentials.app_id


def _prefix(name: str) -> str:
    return f"{name}: " if name else ""
