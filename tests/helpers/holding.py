"""An ASGI app that takes requests and keeps its answers back."""

import anyio


class Holding:
    """Serves ``app``; while ``holding``, whatever it answers waits, its effects do not."""

    def __init__(self, app):
        self.app = app
        self.holding = False

    async def __call__(self, scope, receive, send):
        async def send_later(message):
            while self.holding:
                await anyio.sleep(0.005)
            await send(message)

        await self.app(scope, receive, send_later)
