"""A real browser for the tests of local pages: Debian's Chromium, driven by Playwright, which never downloads one.

A :class:`Window` is one page in a context of its own. It notes everything that must not happen: errors on the console,
violations of the content security policy, and requests that leave the origin.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium")
MISSING = CHROMIUM is None or find_spec("playwright") is None or find_spec("axe_playwright_python") is None
PATIENCE = 10_000  # milliseconds after which a browser's step has failed
WIDE, NARROW = 1280, 390
SERIOUS = ("serious", "critical")


@asynccontextmanager
async def launched():
    """Start a browser without a window, and without access to anything but this machine."""
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=PATIENCE)
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser
        finally:
            await browser.close()


def apart(function, *args):
    """Return what a function returns that runs an event loop of its own: the loop of the browser's tests runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


class Window:
    """A page of the browser. ``problems`` must be empty at the end of a test; ``allow`` names texts that may occur."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.origin = urlsplit(url).netloc
        self.requests = []
        self.problems = []
        self.allowed = []
        page.on("console", lambda message: self._note(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on("request", self._request)

    def _note(self, text):
        self.problems.append(text)

    def _request(self, request):
        self.requests.append(request.url)
        if urlsplit(request.url).scheme not in {"data", "blob"} and urlsplit(request.url).netloc != self.origin:
            self._note(f"left the origin: {request.url}")

    def allow(self, text):
        self.allowed.append(text)

    @property
    def wrong(self):
        return [each for each in self.problems if not any(text in each for text in self.allowed)]

    def __getattr__(self, name):
        return getattr(self.page, name)

    def button(self, name, *, within=None, exact=True):
        return (within or self.page).get_by_role("button", name=name, exact=exact)

    async def show(self, tab):
        await self.page.locator(f"#tab-{tab}").click()
        return self.page.locator(f"#panel-{tab}")

    async def axe(self):
        """Return the serious and critical findings of axe-core, one line for each."""
        from axe_playwright_python.async_playwright import Axe

        return findings((await Axe().run(self.page)).response)


def findings(response):
    return [
        f"{each['id']}: {node['target']}: {node['failureSummary']}"
        for each in response["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


@asynccontextmanager
async def opened(browser, url, *, width=WIDE, height=900, theme="light", language="en-US"):
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        locale=language,
        reduced_motion="reduce",
        timezone_id="Asia/Shanghai",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(PATIENCE)
    try:
        window = Window(await context.new_page(), url)
        await window.page.goto(url)
        yield window
    finally:
        await context.close()
