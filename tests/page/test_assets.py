"""The files of a page over HTTP: their headers, which are on every answer, and nothing but the package's own files."""

import re
from pathlib import Path

import rbim.page
from helpers.tables import each_row
from rbim.page.assets import SECURITY_HEADERS, Page, prefers_html

STATIC = Path(rbim.page.__file__).with_name("static")
PAGES = sorted(each.name for each in STATIC.iterdir() if each.name != "parts")
FILES = sorted(str(each.relative_to(STATIC).as_posix()) for each in STATIC.rglob("*") if each.is_file())
PREFIX = "/_below/"


async def answer(path, method="GET", page="emulator", prefix=PREFIX, **headers):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    await Page(page, prefix=prefix)(scope, receive, send)
    start, *rest = sent
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], named, b"".join(each["body"] for each in rest)


def address(file, page):
    return PREFIX if file == f"{page}/index.html" else f"{PREFIX}static/{file}"


@each_row("page", PAGES)
async def test_each_file_is_served_with_its_type_its_length_and_every_header(page):
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for file in FILES:
        if file.split("/")[0] not in {"parts", page}:
            continue
        status, headers, body = await answer(address(file, page), page=page)
        assert (status, body) == (200, (STATIC / file).read_bytes()), file
        assert headers["content-type"].split(";")[0] == kinds[Path(file).suffix]
        assert headers["content-length"] == str(len(body))
        assert headers["cache-control"] == "no-cache"
        assert SECURITY_HEADERS.items() <= headers.items()


@each_row(
    "path, method, status",
    [
        (PREFIX, "GET", 200),
        (PREFIX, "HEAD", 200),
        (PREFIX, "POST", 405),
        (PREFIX + "static/parts/dom.js", "DELETE", 405),
        (PREFIX + "static/", "GET", 404),
        (PREFIX + "static/emulator/index.html", "GET", 404),
        (PREFIX + "static/../__init__.py", "GET", 404),
        (PREFIX + "static//etc/passwd", "GET", 404),
        (PREFIX + "static/parts/dom.js\0", "GET", 404),
        (PREFIX + "other", "GET", 404),
        ("/", "GET", 404),
    ],
)
async def test_every_answer_has_the_headers_that_keep_a_page_to_itself(path, method, status):
    got, headers, body = await answer(path, method)
    assert got == status
    assert SECURITY_HEADERS.items() <= headers.items()
    assert not [name for name in headers if name.startswith("access-control")]
    assert (body == b"") is (method == "HEAD")
    if status == 405:
        assert headers["allow"] == "GET, HEAD"


def test_the_policy_allows_nothing_from_elsewhere_and_no_inline_script_or_style():
    policy = dict(part.split(" ", 1) for part in SECURITY_HEADERS["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


async def test_a_browser_that_has_a_file_gets_it_once():
    _, headers, _ = await answer(PREFIX + "static/parts/page.css")
    status, again, body = await answer(PREFIX + "static/parts/page.css", if_none_match=headers["etag"])
    assert (status, body) == (304, b"")
    assert SECURITY_HEADERS.items() <= again.items()
    status, _, body = await answer(PREFIX + "static/parts/page.css", if_none_match='"another"')
    assert (status, len(body)) == (200, len((STATIC / "parts/page.css").read_bytes()))


BROWSERS = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
FOR_HTML = (BROWSERS, "text/html", "TEXT/HTML;level=1", "text/html, application/json;q=0.9", " text/html ;q=0.5")
FOR_ELSE = (
    "",
    "*/*",
    "application/json",
    "application/json, text/plain, */*",
    "application/json, text/html",
    "text/htmlx",
    ",",
)


def test_a_page_is_for_those_who_name_html_first():
    assert not prefers_html({"headers": []})
    assert [each for each in FOR_HTML if not prefers_html({"headers": [(b"accept", each.encode())]})] == []
    assert [each for each in FOR_ELSE if prefers_html({"headers": [(b"accept", each.encode())]})] == []


SCRIPTS = [name for name in FILES if name.endswith(".js")]
# What turns text into a part of the page or into code, or takes something from elsewhere.
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|srcdoc|\beval\b"
    r"|new Function|https?://(?!www\.w3\.org/2000/svg|127\.0\.0\.1)|\.setAttribute\(\"style\"|localStorage|document\.cookie"
)


@each_row("name", SCRIPTS)
def test_no_script_makes_a_page_of_text_or_takes_anything_from_elsewhere(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert UNSAFE.findall(text) == []
    assert text.startswith("//"), "the first line says what the module is"


@each_row("name", [each for each in FILES if each.endswith((".html", ".css"))])
def test_no_page_or_style_has_anything_inline_or_from_elsewhere(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)|https?://|@import|url\(", text)


def imported(script):
    """Return the modules that a module needs, itself and what they need in turn included."""
    found, todo = set(), [script]
    while todo:
        script = todo.pop()
        if script not in found:
            found.add(script)
            todo += [
                (script.parent / name).resolve()
                for name in re.findall(r'^import .* from "(.+)";$', script.read_text(encoding="utf-8"), re.MULTILINE)
            ]
    return found


def test_no_script_of_a_page_and_no_shared_one_is_left_over():
    shared = set()
    for page in PAGES:
        index = (STATIC / page / "index.html").read_text(encoding="utf-8")
        assert re.findall(r'src="static/([^"]+)"', index) == [f"{page}/main.js"]
        found = imported((STATIC / page / "main.js").resolve())
        needed = {each.relative_to(STATIC.resolve()).as_posix() for each in found}
        assert {name for name in SCRIPTS if name.startswith(f"{page}/")} <= needed
        shared |= needed
    assert {name for name in SCRIPTS if name.startswith("parts/")} <= shared
