"""Credentials that change while a client runs: a provider is asked for them.

The provider is called when the client is entered. When the platform refuses the credentials of a request, it is called
again, once for all requests that were refused for the same credentials; if it returns other ones, each of these requests is
signed and sent once more. That is safe for every operation: a refusal of the credentials has no effect.
"""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING

from rbim.credential_source import CredentialSource
from rbim.credentials import Credentials
from rbim.errors import InvalidRequest
from rbim.validators import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.client.shared import SharedState
    from rbim.credentials import CredentialsProvider
    from rbim.http import Signer

__all__ = ["Rotation"]

logger = logging.getLogger("rbim")

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
        self._source = CredentialSource(
            self._ask, self._use, self._failed, clock=shared.clock, pause=PAUSE, scopes=shared.scopes
        )

    async def begin(self) -> None:
        """Ask the provider for the first time. Raises what it raises, and InvalidRequest for anything but credentials."""
        await self._source.begin()
        self._shared.renewed = self.renewed

    async def renewed(self, refused: Signer) -> bool:
        """Return whether there are other credentials than those that were refused; the provider is asked if need be."""
        if self._shared.signer is refused and not self._source.pausing:
            await self._source.answer()
        return self._shared.signer is not refused

    async def _ask(self) -> Credentials:
        given = self._provider()
        credentials = await given if isawaitable(given) else given
        require("credentials", credentials, Credentials, "a function that returns Credentials(app_id=..., app_token=...)")
        before = self._credentials
        if before is not None and before.app_id != credentials.app_id:
            raise InvalidRequest("credentials: the provider returned those of another application", field="credentials")
        return credentials

    def _use(self, credentials: Credentials) -> bool:
        if credentials == self._credentials:
            return False
        self._credentials = credentials
        self._shared.signer = self._sign_with(credentials)
        self._shared.codec.app_id = credentials.app_id
        return True

    def _failed(self, error: BaseException) -> None:
        """Log that a question failed, without the text and the traceback of the error, which may hold a token."""
        name = f"{self._shared.name}: " if self._shared.name else ""
        logger.warning("%sthe provider of credentials failed: %s", name, type(error).__name__)
