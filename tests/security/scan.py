"""Where the code of the package opens, makes or replaces files, listens, and passes messages: found in its syntax trees.

A place is a text ``module.py: function: call``, such as ``cli/emulator.py: _write_state: replace_private``. Reading is
a place, too: which file is read, and whether through a link, may be another user's choice.
"""

from __future__ import annotations

import ast
from functools import cache

from helpers.paths import PACKAGE

__all__ = ["calls", "files", "listeners", "messages"]

CREATING = {
    "NamedTemporaryFile",
    "SpooledTemporaryFile",
    "TemporaryDirectory",
    "TemporaryFile",
    "FileHandler",
    "FileIO",
    "copy2",
    "copyfile",
    "copytree",
    "hardlink_to",
    "makedirs",
    "mkdir",
    "mkdtemp",
    "mkfifo",
    "mkstemp",
    "open",
    "private_stream",
    "replace_private",
    "create_private",
    "rename",
    "symlink",
    "symlink_to",
    "touch",
    "write_bytes",
    "write_text",
}
LISTENING = {
    "HTTPServer",
    "TCPServer",
    "TCPSite",
    "ThreadingHTTPServer",
    "UDPServer",
    "UnixSite",
    "bind",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_server",
    "listen",
    "make_server",
    "open_tcp_listeners",
    "serve_tcp",
    "start_http_server",
    "start_server",
    "start_unix_server",
}
SERVERS = {"uvicorn.run", "uvicorn.Server", "web.run_app"}
PASSING = {"add_bucket", "add_stream", "publish", "publish_async", "request", "respond", "subscribe", "pull_subscribe"}


def files():
    """Return the places where files are opened, created or replaced."""
    return {place for place, name, call, _ in calls() if _is_of_a_file(name, call)}


def listeners():
    """Return the places where a socket is bound or listens, or a server is started."""
    return {
        place
        for place, name, call, modules in calls()
        if (
            name in LISTENING
            and not (name in {"bind", "listen"} and not modules & {"socket", "asyncio"})
            and not any(isinstance(each, ast.Starred) for each in call.args)
        )  # the arguments of a signature
        or (name in {"run", "run_app", "Server"} and ast.unparse(call.func) in SERVERS)
    }


def messages():
    """Return the places where something is sent to NATS servers, or subscribed there."""
    return {place for place, name, _, _ in calls("jetstream") if name in PASSING}


def _is_of_a_file(name, call):
    method, given = isinstance(call.func, ast.Attribute), [*call.args, *call.keywords]
    if name == "open" and method and ast.unparse(call.func) != "os.open":
        return bool(given) and _opens_a_path(call)  # an object of ours that is opened has no mode and no encoding
    if name == "replace":  # of a text, it takes two
        return method and len(call.args) == 1 and not call.keywords
    if name == "connect":
        return ast.unparse(call.func) == "sqlite3.connect"
    return name in CREATING


def _opens_a_path(call):
    named = {each.arg for each in call.keywords} & {"mode", "encoding", "newline", "buffering"}
    return bool(named) or (
        bool(call.args) and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    )


def calls(below=""):
    """Return place, name, call and imported modules of each call of the package, or of a folder of it."""
    return _calls(PACKAGE, below)


@cache
def _calls(package, below):
    found = []
    for path in sorted((package / below).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
        }
        found += _in(tree, path.relative_to(package).as_posix(), imported)
    return found


def _in(tree, module, imported):
    waiting = [(tree, "")]
    while waiting:
        node, function = waiting.pop()
        for child in ast.iter_child_nodes(node):
            inner = function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{function}.{child.name}".strip(".")
            elif isinstance(child, ast.Call):
                name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
                yield f"{module}: {function or '(module)'}: {name}", name, child, imported
            waiting.append((child, inner))
