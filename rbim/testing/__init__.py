"""Test tools: pytest fixtures, and the conformance suite for transports."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.testing.pytest_plugin import (
        Inbox as Inbox,
        rbim_client as rbim_client,
        rbim_clock as rbim_clock,
        rbim_emulator as rbim_emulator,
        rbim_inbox as rbim_inbox,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
