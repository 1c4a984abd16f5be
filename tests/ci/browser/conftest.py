"""A browser for all tests of pages, and windows in it: at any width, in both themes, in both languages."""

from contextlib import AsyncExitStack

import pytest

from helpers_ci import browser as chromium
from rbim.emulator import Emulator
from rbim.emulator.server.server import serve


@pytest.fixture(scope="package")
def anyio_backend():
    """Playwright and the emulator's server run on asyncio; one loop for all tests here, because the browser lives in it.

    It must end with this folder: while it is there, no other test of the process could run a loop of its own.
    """
    return "asyncio"


@pytest.fixture(scope="package")
async def browser(anyio_backend):  # noqa: ARG001  # its loop
    if chromium.MISSING:
        pytest.skip(reason="needs chromium, of Debian's package of this name, and the extra ci")
    async with chromium.launched() as browser:
        yield browser


@pytest.fixture
async def served():
    """A function that serves an emulator until the windows of the test are closed: ``await served(emulator)``."""
    async with AsyncExitStack() as stack:

        async def serve_it(emulator, **options):
            return await stack.enter_async_context(serve(emulator, **options))

        yield serve_it


@pytest.fixture
async def opened(browser, served):  # noqa: ARG001  # its servers end after the windows
    """A function that opens an address: ``await opened(url, width=390, theme="dark", language="zh-CN")``.

    At the end of the test no window may have had an error on its console, a violation of its policy, or a request to
    elsewhere.
    """
    windows = []
    async with AsyncExitStack() as stack:

        async def open_window(url, **options):
            window = await stack.enter_async_context(chromium.opened(browser, url, **options))
            windows.append(window)
            return window

        yield open_window
        assert [problem for window in windows for problem in window.wrong] == []


@pytest.fixture
def emulator():
    return Emulator()


@pytest.fixture
async def server(emulator, served):
    return await served(emulator)
