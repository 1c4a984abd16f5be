"""The list of every output. A new output gets an entry here; test_planted_secrets.py tells which command is missing.

An entry is a function of the World that yields texts or bytes, all of that output. Secrets are planted in everything that
the output may depend on: the environment, files, addresses, and the platform's answers, which may quote the signed request.
"""

import asyncio
import json
import pickle
import re
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import product

import attrs
from security.world import APP_ID, CREDENTIALS, SECRETS, all_logs, command, environment, process, shown

from helpers.page_client import showing
from helpers.paths import TESTS
from helpers.processes import ran
from helpers.telemetry import Telemetry
from rbim import AsyncClient, GroupType, LoggingObserver, Request, Retry, errors
from rbim.bulk.job import InviteJob
from rbim.callbacks import Receiver, delivery_of, sign
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.codes import CODES
from rbim.config import load
from rbim.emulator.server.control import COMMANDS
from rbim.http import Response
from rbim.transports.auto import transport_named
from rbim.wire.signing import AppSigner

OUTPUTS = {}
COMMANDS_RUN = set()
TRANSPORTS = ("auto", "httpx", "httpx2", "aiohttp", "asyncio")
OF_JOBS = {"works", "quoted", "closed proxy"}  # the others take long, or show the same
PATIENCE = ("--patience", "1")
ROWS = "group,account\ng1,1\ng1,=2\ng1,2\n,3\n"
LONELY = Retry(attempts=1)


def output(*commands):
    """Return a decorator that adds an entry to the list, with the commands that it runs."""

    def add(make):
        OUTPUTS[make.__name__.strip("_")] = make
        COMMANDS_RUN.update(commands)
        return make

    return add


# ------------------------------------------------------------------------------ commands


TASK = "--bot-id 7 --task-name t --start-date 2099-01-01 --end-date 2099-01-31 --caller 1000".split()  # noqa: SIM905
TASK += ["--max-concurrent", "1", "--min-concurrent", "1"]
WORDS = {
    "help": ["help", "errors#throttled"],
    "operations": ["operations"],
    "dialect": ["dialect"],
    "doctor": ["doctor", "--timeout", "2"],
    "config show": ["config", "show"],
    "config path": ["config", "path"],
    "completion": ["completion", "--shell", "fish", "--output"],
    "groups create": ["groups", "create", "--name", "n", "--type", "2"],
    "groups modify": ["groups", "modify", "g1", "--name", "n", "--permission", "open"],
    "groups delete": ["groups", "delete", "g1", "--yes"],
    "groups search": ["groups", "search", "--name", "n"],
    "groups detail": ["groups", "detail", "g1"],
    "groups join": ["groups", "join", "g1", "--declared", "d"],
    "groups invite": ["groups", "invite", "g1", "--members", "1001"],
    "groups remove": ["groups", "remove", "g1", "--members", "1001", "--yes"],
    "groups leave": ["groups", "leave", "g1"],
    "groups set-role": ["groups", "set-role", "g1", "--member", "1001", "--role", "member"],
    "calls create-task": ["calls", "create-task", *TASK],
    "callback send": ["callback", "send", "hello", "--to", "1", "--sender", "2", "--url"],
    "callback explain": ["callback", "explain"],
    "callback replay": ["callback", "replay", "--inbox"],
    "callback status": ["callback", "status"],
    **{f"callback letters {act}": ["callback", "letters", act] for act in ("list", "show", "requeue", "discard")},
}
FAILING = """
from rbim.callbacks import Event, Router

router = Router()

@router.fallback
async def fails(event: Event) -> None:
    raise ValueError(f"no room for {event}")
"""
WITHOUT_JSON = {"completion", "help", "callback explain", "callback replay", "callback send"}
EVERYWHERE = {"groups create", "groups detail", "doctor", "config show"}  # the others show the same of an environment
NUMBERED = {"show": ("1",), "requeue": ("1",), "discard": ("1", "--yes")}


@output(*WORDS)
def _commands(world):
    """Each command that ends by itself, where it works and where it fails in each known way."""
    for name in WORDS:
        words = _words(name, world)
        for number, (known, values) in enumerate(world.environments()):
            if name in EVERYWHERE or known in {"works", "quoted", "broken credentials"}:
                with environment(values):
                    written = command("--debug", *words)
                    assert number or not re.search(rb"See: rbim .*--help|is required|[Uu]nknown (option|command)", written)
                    yield written
                    if name not in WITHOUT_JSON:
                        yield command(*words, "--json")


def _words(name, world):
    """Return the words of a command, with a file or address of this world at the end where it needs one."""
    words = WORDS[name]
    if name == "completion":
        return [*words, world.path("rbim.fish")]
    if name == "callback send":
        password = SECRETS["password in the base URL"]
        return [*words, f"{world.url.replace('://', f'://user:{password}@')}/echo"]
    if name == "callback explain":
        capture = world.path("capture.txt")
        headers = sign(b"{}", credentials=CREDENTIALS, now=datetime(2026, 1, 2, tzinfo=UTC)) | {"CheckSum": "0" * 32}
        capture.write_text("".join(f"{key}: {value}\n" for key, value in headers.items()) + "\n{}")
        return [*words, capture, "--json"]
    if name in {"callback replay", "callback status"} or name.startswith("callback letters"):
        inbox = world.path("events.db")
        asyncio.run(_inbox(inbox))
        return [*words, inbox, *NUMBERED.get(words[-1], ())]
    return words


async def _inbox(path):
    async with SqliteInbox(path) as inbox:
        for body in (b"not JSON", b'{"eventType": "1", "convType": "TEAM", "to": "g1", "msgType": "TEXT", "msgId": "m"}'):
            await inbox.accept(delivery_of(body, app_id=APP_ID, received=datetime(2026, 1, 2, tzinfo=UTC)))


@output("callback send")
def _failing_urls(world):
    user = f"user:{SECRETS['password in the base URL']}"
    with environment(world.environment):
        for url in (f"http://{user}@127.0.0.1:1/x", f"http://{user}@127.0.0.1:99999/", f"ftp://{user}@h//x", f"{user}@h"):
            yield command("callback", "send", "hello", "--to", "1", "--sender", "2", "--url", url)


@output("invite", "remove", *(f"job {act}" for act in ("list", "status", "report", "resume", "retry", "forget")))
def _jobs(world):
    for name, values in world.environments():
        if name not in OF_JOBS:
            continue
        source = world.path("members.csv")
        source.write_text(ROWS)
        journal, report, rest, plot = (source.with_name(each) for each in ("j.db", "report.csv", "rest.csv", "plot.svg"))
        with environment(values):
            more = ("--not-done", rest)
            yield command("invite", source, "--journal", journal, "--debug", *PATIENCE, *more)
            yield command("remove", source, "--yes", "--json", *PATIENCE)
            yield command("job", "list", journal.parent, "--json")
            yield command("job", "status", journal, "--json")
            yield command("job", "report", journal, "--debug", "--csv", report)
            yield command("job", "report", journal, "--json")
            yield command("job", "retry", journal, "--debug")
            yield command("job", "resume", journal, "--debug")
            if name in {"works", "quoted"}:
                yield command("job", "report", journal, "--plot", plot)
                yield command("job", "report", journal, "--plot", plot.with_suffix(".png"))
                yield command("job", "forget", journal, "--debug")
                yield command("job", "forget", journal, "--unfinished", "--yes", "--debug")
                yield command("job", "report", journal, "--json")
        written = {file.name: file.read_bytes() for file in source.parent.iterdir()}
        yield from written.values()
        if name == "works":
            assert {"j.db", "report.csv", "rest.csv", "plot.svg", "plot.png", "members.csv.remove.journal"} <= written.keys()


def _deliver(url):
    event = {"eventType": "1", "convType": "TEAM", "to": "g1", "fromAccount": f"{APP_ID}#1", "msgType": "TEXT"}
    body = json.dumps(event | {"msgId": "m"}).encode()
    for headers in (sign(body, credentials=CREDENTIALS, now=datetime.now(UTC)), {"MD5": "x"}, {}):
        with suppress(OSError):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                urllib.request.Request(url, body, headers)
            ).read()


@output("callback serve")
def _serve(world):
    inbox = world.path("inbox.db")
    several = inbox.with_name("keys.json")
    several.write_text(json.dumps([{"app_id": APP_ID, "app_token": SECRETS["older callback token"]}]))
    values = world.environment | {"RBIM_CALLBACK_CREDENTIALS_FILE": str(several)}

    yield process("callback", "serve", "--port", "0", "--inbox", inbox, "--print", "--debug", values=values, act=_deliver)
    for file in inbox.parent.iterdir():
        if file != several:
            yield file.read_bytes()


# ------------------------------------------------------------------------------ pages of files


OF_A_JOB = ("/state", "/accounts", "/accounts?state=failed", "/accounts?after=x", "/download", "/download?not_done=")
OF_AN_INBOX = (
    "/state",
    *(f"/{path}?state={state}" for path in ("events", "reasons") for state in ("dead", "quarantined", "none")),
    *(f"/event?number={number}" for number in (1, 2, 99)),
)


def _asked(file, paths):
    with showing(file, "--debug") as page:
        for path in ("/", "/missing", *paths):
            answer = page.get(path)
            yield answer.text + str(answer.headers)
        for number in (1, 99):
            yield page.post("/requeue", state="dead", number=number).text
        page.popen.terminate()
        yield from page.popen.communicate()


@output("page")
def _pages(world):
    for name, values in world.environments():
        if name in OF_JOBS:
            source = world.path("members.csv")
            source.write_text(ROWS)
            with environment(values):
                command("invite", source, *PATIENCE)
                yield from _asked(source.with_name("members.csv.invite.journal"), OF_A_JOB)
    inbox = world.path("shown.db")
    asyncio.run(_inbox(inbox))
    with environment(world.environment):
        yield from _asked(inbox, OF_AN_INBOX)


@output("callback work")
def _work(world):
    """Its handler fails, with an error that quotes the event."""
    inbox = world.path("worked.db")
    inbox.with_name("failing.py").write_text(FAILING)
    asyncio.run(_inbox(inbox))
    words = ("callback", "work", "failing:router", "--inbox", inbox, "--app-dir", inbox.parent, "--debug")
    yield process(*words, values=world.environment)
    for file in inbox.parent.glob("worked*"):
        yield file.read_bytes()


@output("emulator")
def _emulator(world):
    state = world.path("state.json")

    def ask(url):
        with environment(world.environment | {"RBIM_BASE_URL": url}):
            command("groups", "create", "--name", "n", "--type", "2")

    yield process("emulator", "--port", "0", "--state", state, "--debug", values=world.environment, act=ask)
    yield state.read_bytes()


@output("demo")
def _demo(world):
    source = world.path("members.csv")
    source.write_text("group,account\ng1,1\ng1,2\n")
    with environment(world.environment):
        yield command("demo", "--csv", source, "--json", "--debug")


@output()
def _configuration(world):
    """Files of the configuration with secrets where they are read, and where they are not."""
    token, old = (SECRETS[name] for name in ("application token", "older callback token"))
    password = SECRETS["password in the base URL"]
    contents = {
        "right": f'[profiles.p]\napp_id = "{APP_ID}"\napp_token = "{token}"\n',
        "broken": f'[profiles.p]\napp_token = "{token}\n',
        "broken later": f'[profiles.p]\napp_token = "{token}"\nx = [\n',
        "user info": f'[profiles.p]\nbase_url = "http://user:{password}@127.0.0.1:1"\napp_token = "{old}"\n',
        "number": f"[profiles.p]\napp_token = 0x{token}\n",
    }
    yield from _configured(world, contents.values())


@output()
def _wrong_keys(world):
    """Values of these keys are quoted in errors."""
    keys = ("app_tokn", "transport", "concurrency", "timeout", "rates", "token_env", "callback_credentials_file")
    wrong = SECRETS["token under a wrong key"]
    yield from _configured(world, [f'[profiles.p]\n{key} = "{wrong}"\n' for key in keys])


def _configured(world, contents):
    for content in contents:
        file = world.path("rbim.toml")
        file.write_text(content)
        file.chmod(0o600)
        for words in (["config", "show"], ["config", "show", "--json"], ["groups", "detail", "g1"]):
            with environment({"RBIM_CONFIG": str(file), "RBIM_PROFILE": "p", "RBIM_BASE_URL": ""}):
                yield command("--debug", *words)
        with environment({}):
            try:
                load("p", file, warn=lambda _: None)
            except errors.RbimError as error:
                yield shown(error)


# ------------------------------------------------------------------------------ the emulator


@output()
def _control(world):
    with environment(world.environment):
        command("groups", "create", "--name", "n", "--type", "2")
        command("groups", "detail", "unknown")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in (each.path for each in COMMANDS if each.method == "GET"):
        try:
            with opener.open(world.url + path.replace("{id}", "1"), timeout=20) as answer:
                yield answer.read() + str(answer.headers).encode()
        except urllib.error.HTTPError as error:
            with error:
                yield error.read()


# ------------------------------------------------------------------------------ transports, logs, telemetry


ORIGINS = ("{url}", "{url}/echo", "{url}/echo/html", "{url}/echo/redirect", "http://127.0.0.1:1")


async def _call(world, transport, base_url, observers=()):
    url = base_url.format(url=world.url)
    client = AsyncClient(
        base_url=url, credentials=CREDENTIALS, transport=transport, user_name="admin", retry=LONELY, observers=observers
    )
    async with client:
        texts = [repr(client), repr(vars(client)), repr(transport)]
        for call in (
            lambda: client.groups.create(name="n", type=GroupType.VIP),
            lambda: client.groups.detail(group_id="none"),
            lambda: client.groups.invite(group_id="none", members=["1", "2"]),
        ):
            try:
                texts.append(repr(await call()))
            except errors.RbimError as error:
                texts.append(shown(error))
            except asyncio.CancelledError as error:
                texts.append(shown(error))
    return texts


@output()
def _calls(world):
    """Calls over each transport, with all loggers at DEBUG: those of rbim, of asyncio and of the HTTP libraries."""
    proxies = ({}, {"HTTP_PROXY": world.proxy(world.url[7:])}, {"HTTP_PROXY": world.proxy("127.0.0.1:1")})
    for name, values in product(TRANSPORTS, proxies):
        with environment(values), all_logs() as lines:
            for origin in ORIGINS if not values else ("http://im.example",):
                yield from asyncio.run(_call(world, transport_named(name), origin, [LoggingObserver()]))
            yield "\n".join(lines)


@output()
def _telemetry(world):
    telemetry = Telemetry()
    for origin in ORIGINS:
        asyncio.run(_call(world, transport_named("asyncio"), origin, [telemetry.observer]))
    yield telemetry.text()


@output()
def _observers(world):
    seen = []

    for origin in ORIGINS:
        asyncio.run(_call(world, transport_named("httpx"), origin, [seen.append]))
    for event in seen:
        yield from _everything_of(event)


# ------------------------------------------------------------------------------ errors


class Quoting:
    """A transport whose answer quotes the signed request, or which raises an error that does."""

    def __init__(self, world, code=None, *, text=None, raises=None, seconds=0.0):
        self._seconds = seconds
        self._world, self._code, self._text, self._raises = world, code, text, raises

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def send(self, request, /, *, timeout):  # noqa: ARG002  # as a client calls it
        await asyncio.sleep(self._seconds)
        secrets = request.secrets
        self._world.secrets |= {f"secret {secret[:4]}": secret for secret in secrets}
        if self._raises is not None:
            raise self._raises(f"no answer from {request.origin}")
        quoted = f"{request.target} {secrets[-1]}"
        document = {"statusCode": self._code, "statusMsg": quoted}
        return Response(200, {}, json.dumps(document).encode() if self._text is None else self._text.format(quoted).encode())


def _raised(transport, **options):
    async def call():
        client = AsyncClient(
            base_url="http://im.example",
            credentials=CREDENTIALS,
            transport=transport,
            user_name="a",
            retry=LONELY,
            **options,
        )
        async with client:
            await client.groups.detail(group_id="g1")

    try:
        asyncio.run(call())
    except errors.RbimError as error:
        return type(error), shown(error)
    raise AssertionError("no error")


def _kinds():
    found, waiting = [], [errors.RbimError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return found


def _error(kind, world):
    codes = [code for code, known in CODES.items() if known.error is kind]
    if codes:
        found = [_raised(Quoting(world, code)) for code in codes[:2]]
    elif kind in {errors.NotSent, errors.Unanswered, errors.TransportError}:
        found = [_raised(Quoting(world, raises=kind))]
    elif kind is errors.AnswerTooLarge:
        found = [_raised(Quoting(world, raises=partial(kind, limit=3)))]
    elif kind in {errors.ApiError, errors.RbimError}:
        found = [(kind, _raised(Quoting(world, "999999"))[1])]
    elif kind in {errors.ProtocolError, errors.IntermediaryError}:
        found = [_raised(Quoting(world, text=text)) for text in ("<p>{}</p>", '{{"statusCode": ["{}"]}}', "{}")]
        found = [(kind, text) for _, text in found]
    elif kind is errors.DeadlineExceeded:
        found = [_raised(Quoting(world, "999999", seconds=5.0), deadline=0.05)]
    else:
        found = [(kind, shown(_OTHERS[kind](world)))]
    assert {raised for raised, _ in found} == {kind}, found
    return [text for _, text in found]


def _closed(world):
    async def call():
        client = AsyncClient(base_url=world.url, credentials=CREDENTIALS, user_name="a")
        async with client:
            pass
        await client.groups.detail(group_id="g1")

    try:
        asyncio.run(call())
    except errors.ClientClosed as error:
        return error
    raise AssertionError("no error")


def _invalid(_):
    try:
        AsyncClient(base_url=f"http://user:{SECRETS['password in the base URL']}@[", credentials=CREDENTIALS)
    except errors.InvalidRequest as error:
        return error
    raise AssertionError("no error")


def _rejected(_):
    from rbim.callbacks.events import parse

    try:
        parse(b"no JSON")
    except errors.CallbackRejected as error:
        return error
    raise AssertionError("no error")


_OTHERS = {errors.ClientClosed: _closed, errors.InvalidRequest: _invalid, errors.CallbackRejected: _rejected}


@output()
def _errors(world):
    for kind in _kinds():
        yield from _error(kind, world)


# ------------------------------------------------------------------------------ objects


def _everything_of(value):
    """Return what can be shown of an object by repr, str, format, attrs.asdict and pickle, and its attributes."""
    yield f"{value!r} {value!s} {value}"
    try:
        yield repr(attrs.asdict(value))
    except Exception as error:
        yield shown(error)
    if hasattr(value, "__dict__"):
        yield repr(vars(value))
    try:
        yield pickle.dumps(value)
    except Exception as error:
        yield shown(error)


@output()
def _objects(world):
    password = SECRETS["password in the base URL"]
    with environment(world.environment | {"HTTP_PROXY": world.proxy("127.0.0.1:1")}):
        for value in (CREDENTIALS, CREDENTIALS.app_token, AppSigner(CREDENTIALS), load(), AsyncClient.from_env()):
            yield from _everything_of(value)
        for name in TRANSPORTS:
            yield from _everything_of(transport_named(name))
    signed = AppSigner(CREDENTIALS).sign(Request(origin=f"http://im.example/{len(password)}", path="/p", body=b"{}"))
    world.secrets |= {f"signed {index}": secret for index, secret in enumerate(signed.secrets)}
    yield f"{signed!r} {signed!s}"  # its fields are what is sent: a pickle of them would be, too
    yield repr(Response(302, {"location": signed.target}, signed.target.encode()))
    yield from _everything_of(InviteJob(AsyncClient(base_url=world.url, credentials=CREDENTIALS), journal="j.db"))


@output()
def _receiver(world):
    seen = []
    with all_logs() as lines:

        async def deliver():
            sink = SqliteInbox(world.path("inbox.db"))
            receiver = Receiver(credentials=[CREDENTIALS], sink=sink, observers=[seen.append])
            async with receiver:
                for headers in (sign(b"{}", credentials=CREDENTIALS, now=datetime.now(UTC)), {"CheckSum": "x"}, {}):
                    reply = await receiver.receive(headers, b"{}")
                    seen.append(reply)
            return [receiver, sink]

        for value in asyncio.run(deliver()):
            yield from _everything_of(value)
    yield "\n".join(map(repr, seen))
    yield "\n".join(lines)


@output()
def _emulated(world):
    yield from _everything_of(world.emulator)
    yield "\n".join(map(repr, world.emulator.requests))
    yield json.dumps(world.emulator.export())


@output()
def _plugin(world):
    test = world.path("test_it.py")
    test.write_text(
        """
import anyio, logging, pytest
from rbim import Credentials, LoggingObserver
from security.world import CREDENTIALS

@pytest.mark.rbim(credentials=CREDENTIALS)
def test_fails(rbim_client, rbim_emulator, rbim_inbox):
    async def main():
        async with rbim_client as client:
            rbim_emulator.copy_to(rbim_inbox)
            await client.groups.detail(group_id="none")
    emulator, requests = rbim_emulator, list(rbim_emulator.requests)
    anyio.run(main)
"""
    )
    words = [sys.executable, "-m", "pytest", "--showlocals", "--log-level=DEBUG", "-vv", "--full-trace", "-p", "no:asyncio"]
    words += ["-p", "no:cacheprovider", "-o", f"pythonpath={TESTS}", "--rootdir", test.parent, test]
    done = ran(*words, encoding=None, timeout=120)
    assert b"NotFound" in done.stdout, done
    yield done.stdout + done.stderr
