"""A browser for all tests of pages, and windows in it: at any width, in both themes, in both languages."""

from contextlib import AsyncExitStack

import pytest

from helpers import browser as chromium
from rbim.emulator import Emulator
from rbim.emulator.server.server import serve


@pytest.fixture(scope="session")
def anyio_backend():
    """Playwright and the emulator's server run on asyncio; one loop for all tests, because the browser lives in it."""
    return "asyncio"


@pytest.fixture(scope="session")
async def browser(anyio_backend):
    if chromium.MISSING:
        pytest.skip(reason="needs chromium, of Debian's package of this name, and the extra browser")
    async with chromium.launched() as browser:
        yield browser


@pytest.fixture
async def opened(browser):
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
async def server(emulator):
    async with serve(emulator) as server:
        yield server
