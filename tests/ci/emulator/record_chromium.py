"""Record the requests of ``chromium.jsonl``: all that a page in Chromium can send to a server of this machine.

Run by hand, with Chromium installed: ``python tests/ci/emulator/record_chromium.py``. A server in the place of the
emulator answers without a CORS header, as the emulator does, and ``chromium_page.html`` is opened from each place that a
page can have.
"""

import json
import re
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PATIENCE = 60
SETTLING = 2.5  # seconds after the last attempt, a link
CHROMIUM = [
    "chromium",
    "--headless",
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-popup-blocking"),
    "--remote-debugging-port=0",  # it stays open
    "--host-resolver-rules=MAP evil.test 127.0.0.1",
]
# Where the page is, and the server: {own} is the server's port, {other} another one. Pages of one place send the same.
PLACES = [
    ("another site", "http://evil.test:{other}", "127.0.0.1:{own}"),
    ("another site", "http://localhost:{other}", "127.0.0.1:{own}"),
    ("another port", "http://127.0.0.1:{other}", "127.0.0.1:{own}"),
    ("another port", "http://localhost:{other}", "localhost:{own}"),
    ("a rebound name", "http://evil.test:{own}", "evil.test:{own}"),
    ("its own page", "http://127.0.0.1:{own}", "127.0.0.1:{own}"),
    ("the address bar", "", "127.0.0.1:{own}"),
]
REPLACED = {
    r"----WebKitFormBoundary\w{16}": "----WebKitFormBoundaryAAAAAAAAAAAAAAAA",
    r'"Sec-WebSocket-Key": "[^"]+"': '"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="',
    r"/page\?[^\"]*": "/page",
}


RECORDS = []
DONE = threading.Event()  # the page has tried all


class Recorder(BaseHTTPRequestHandler):
    """Serves the page, and answers and records all that goes to the control interface."""

    protocol_version = "HTTP/1.1"
    page = (HERE / "chromium_page.html").read_text(encoding="utf-8")

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        path, _, query = self.path.partition("?")
        if path == "/done":
            DONE.set()
            self.reply(204)
        elif path == "/page":
            self.reply(200, "text/html", self.page.replace("{target}", query).encode())
        elif path.startswith("/_emulator/"):
            headers = dict(self.headers.items())
            RECORDS.append({"method": self.command, "target": self.path, "headers": headers, "body": body})
            self.reply(405 if self.command == "OPTIONS" else 200, "application/json", b"[]")
        else:
            self.reply(404)

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = handle_any  # noqa: N815  # the library's names

    def reply(self, status, kind="text/plain", body=b""):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def visit(url):
    RECORDS.clear()
    DONE.clear()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = subprocess.Popen(
            [*CHROMIUM, f"--user-data-dir={folder}", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if "/page" in url:
            assert DONE.wait(PATIENCE)
        time.sleep(SETTLING)
        browser.terminate()
        browser.wait(PATIENCE)
    return list(RECORDS)


def general(record, page, host):
    """Return a record with placeholders for what differs from run to run."""
    text = json.dumps(record).replace(f'"Host": "{host}"', '"Host": "{target}"')
    for pattern, replacement in REPLACED.items():
        text = re.sub(pattern, replacement, text)
    return json.loads(text.replace(page, "{page}") if page else text)


def main():
    places = {}
    with serving() as own, serving() as other:
        for place, *addresses in PLACES:
            page, host = (each.format(own=own, other=other) for each in addresses)
            url = f"{page}/page?http://{host}" if page else f"http://{host}/_emulator/state?address-bar"
            found = sorted((general(each, page, host) for each in visit(url)), key=lambda each: each["target"])
            assert places.setdefault(place, found) == found, f"{page} sends something else"
    everything = [each for found in places.values() for each in found]
    common = {
        name: text
        for name, text in everything[0]["headers"].items()
        if all(each["headers"].get(name) == text for each in everything)
    }
    version = subprocess.run(["chromium", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    lines = [{"browser": version, "headers": common}]
    for place, found in places.items():
        for each in found:
            headers = {name: text for name, text in each["headers"].items() if name not in common}
            lines.append({"from": place, **each, "headers": headers})
    (HERE / "chromium.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
