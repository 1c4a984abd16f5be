"""One request to an ASGI application, without a server."""

HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


async def asgi(app, method, path, body=b"", headers=HEADERS):
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event):
        sent.append(event)

    await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}, receive, send)
    return sent
