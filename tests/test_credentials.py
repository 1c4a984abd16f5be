"""A client made from environment variables."""

import json
import pickle
import re
import traceback
from datetime import timedelta
from functools import partial

import pytest

from helpers.paths import ROOT
from helpers.stubs import APP_ID, BASE_URL, CREDENTIALS, READ, TOKEN, Stub, answer, ending, waits
from rbim import (
    AppSigner,
    AsyncClient,
    CreateCallTask,
    Credentials,
    DeadlineExceeded,
    Dialect,
    InvalidRequest,
    Limits,
    Rate,
    Response,
)
from rbim.callbacks import MemorySink, Receiver, sign
from rbim.jetstream import NatsSettings

NAMES = ("RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN", "RBIM_APP_TOKEN_FILE", "RBIM_USER_NAME")


@pytest.fixture(autouse=True)
def environment(bare_environment):
    """A complete environment, and nothing of the machine's own."""
    for name, value in zip(NAMES[:3], (BASE_URL, APP_ID, TOKEN), strict=True):
        bare_environment.setenv(name, value)
    return bare_environment


@pytest.fixture
def token_file(environment, tmp_path):
    environment.delenv("RBIM_APP_TOKEN")
    file = tmp_path / "token"
    environment.setenv("RBIM_APP_TOKEN_FILE", str(file))
    return file


async def sent(**options):
    """Send one request with a client from the environment and return it."""
    stub = Stub()
    async with AsyncClient.from_env(transport=stub, clock=stub.clock, **options) as client:
        await client.send(READ)
    return stub.requests[0]


async def signature(app_id: str, token: str):
    """Return the signature that a client with these credentials makes at the same moment."""
    stub = Stub()
    credentials = Credentials(app_id=app_id, app_token=token)
    async with AsyncClient(base_url=BASE_URL, credentials=credentials, transport=stub, clock=stub.clock) as client:
        await client.send(READ)
    return stub.requests[0].query


async def test_address_and_credentials_come_from_the_environment():
    request = await sent()
    assert request.origin == BASE_URL
    assert APP_ID in request.path
    assert request.query == await signature(APP_ID, TOKEN)
    assert json.loads(request.body) == {"groupId": "g1"}


async def test_the_acting_account_may_come_from_the_environment(environment):
    environment.setenv("RBIM_USER_NAME", "boss")
    assert json.loads((await sent()).body) == {"userName": "boss", "groupId": "g1"}
    environment.setenv("RBIM_USER_NAME", "")
    assert json.loads((await sent()).body) == {"groupId": "g1"}


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n", f"  {TOKEN}\n\n"])
async def test_the_token_may_stand_in_a_file(token_file, content):
    token_file.write_bytes(content.encode())
    assert (await sent()).query == await signature(APP_ID, TOKEN)


async def test_a_token_in_the_environment_goes_before_one_in_a_file(environment, tmp_path):
    environment.setenv("RBIM_APP_TOKEN_FILE", str(tmp_path / "not there"))
    assert (await sent()).query == await signature(APP_ID, TOKEN)


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("name", NAMES[:3])
def test_the_variable_that_is_missing_is_named(environment, name, value):
    if value is None:
        environment.delenv(name)
    else:
        environment.setenv(name, value)
    with pytest.raises(InvalidRequest, match=f"{name} is not set") as caught:
        AsyncClient.from_env()
    assert caught.value.field == name


async def test_options_go_before_the_environment(environment):
    environment.setenv("RBIM_USER_NAME", "boss")
    other = Credentials(app_id="other", app_token="other-token")
    request = await sent(base_url="http://other.example/prefix/", credentials=other, user_name="me")
    assert request.origin == "http://other.example/prefix"
    assert "/other/" in request.path
    assert request.query == await signature("other", "other-token")
    assert json.loads(request.body)["userName"] == "me"


@pytest.mark.parametrize(
    "options", [{"credentials": CREDENTIALS}, {"signer": AppSigner(CREDENTIALS)}], ids=["credentials", "signer"]
)
def test_what_an_option_says_need_not_be_in_the_environment(environment, options):
    for name in NAMES:
        environment.delenv(name, raising=False)
    assert APP_ID in repr(AsyncClient.from_env(base_url=BASE_URL, **options))


def test_an_account_of_none_goes_before_the_environment(environment):
    environment.setenv("RBIM_USER_NAME", "boss")
    assert "boss" in repr(AsyncClient.from_env())
    assert "boss" not in repr(AsyncClient.from_env(user_name=None))


def test_a_subclass_makes_its_own_kind():
    class MyClient(AsyncClient):
        pass

    assert type(MyClient.from_env()) is MyClient


def shown(error: BaseException | None) -> str:
    """Return all that error and whatever led to it could show, locals of rbim's frames included."""
    parts = []
    while error is not None:
        parts += [str(error), repr(error), repr(vars(error)), repr(error.args)]
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if "/rbim/" in frame.f_code.co_filename]
        parts += [repr(value) for frame in frames for value in frame.f_locals.values()]
        error = error.__cause__ or error.__context__
    return " ".join(parts)


async def test_a_token_file_may_begin_with_the_mark_that_some_editors_write(token_file):
    token_file.write_bytes(b"\xef\xbb\xbf" + TOKEN.encode() + b"\r\n")
    AsyncClient.from_env()


def test_a_token_file_that_is_not_there_is_named(token_file):
    with pytest.raises(InvalidRequest, match="RBIM_APP_TOKEN_FILE names cannot be read") as caught:
        AsyncClient.from_env()
    assert str(token_file) in str(caught.value)
    assert caught.value.field == "RBIM_APP_TOKEN_FILE"


@pytest.mark.parametrize(
    "content",
    [
        TOKEN.encode("utf-16"),
        TOKEN.encode() + b"\xff",
        f"{TOKEN} {TOKEN}".encode(),
        f"{TOKEN}\u00e9".encode(),
        b"",
        b"\n",
    ],
    ids=["utf-16", "not utf-8", "two words", "not ascii", "empty", "blank"],
)
def test_a_token_that_cannot_be_one_is_refused_and_shown_nowhere(token_file, content):
    token_file.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        AsyncClient.from_env()
    assert TOKEN not in shown(caught.value).replace("\\x00", "")
    assert TOKEN.encode() not in pickle.dumps(caught.value)


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN}\u00e9"])
def test_a_bad_token_in_the_environment_is_shown_nowhere(environment, token):
    environment.setenv("RBIM_APP_TOKEN", token)
    with pytest.raises(InvalidRequest, match=r"^RBIM_APP_TOKEN: ASCII text") as caught:
        AsyncClient.from_env()
    assert caught.value.field == "RBIM_APP_TOKEN"
    assert TOKEN not in shown(caught.value)


# ------------------------------------------------------------------------------ every variable of the documentation

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
OF_JOBS = {"RBIM_GROUP_COLUMN", "RBIM_ACCOUNT_COLUMN", "RBIM_USER_NAME_COLUMN"}  # no part of a client or a receiver
DOCUMENTED = [name for name in re.findall(r"^\| `\w+` \| `(RBIM_\w+)` \|", PAGE, re.MULTILINE) if name not in OF_JOBS]
OF_CALLBACKS = "RBIM_CALLBACK_CREDENTIALS_FILE"


async def first_request(operation=READ):
    """Return the request of an operation, sent by a client of the environment over a scripted transport."""
    stub = Stub(answer() if operation is READ else TASK_DONE)
    async with AsyncClient.from_env(transport=stub, clock=stub.clock) as client:
        await client.send(operation)
    return stub.requests[0]


TASK_DONE = Response(200, {}, b'{"code": "000000", "data": {"task_id": "t1", "taskId": "t1"}}')


def task(clock):
    today = clock.now().date()
    return CreateCallTask(
        bot_id=1,
        task_name="n",
        start_date=today,
        end_date=today + timedelta(days=1),
        max_concurrent=2,
        min_concurrent=1,
        caller="400",
        isrecord=True,
    )


async def times_of(count):
    """Return when so many calls in a row were sent, in seconds."""
    stub = Stub()
    async with AsyncClient.from_env(transport=stub, clock=stub.clock) as client:
        for _ in range(count):
            await client.send(READ)
    return stub.times


async def base_url(environment, _):
    environment.setenv("RBIM_BASE_URL", "https://other.example:1/prefix/")
    assert (await first_request()).origin == "https://other.example:1/prefix"


async def call_base_url(environment, _):
    environment.setenv("RBIM_CALL_BASE_URL", "https://calls.example")
    assert (await first_request()).origin == BASE_URL
    assert (await first_request(task(Stub().clock))).origin == "https://calls.example"


async def app_id(environment, _):
    environment.setenv("RBIM_APP_ID", "otherapp")
    assert "/otherapp/" in (await first_request()).path


async def app_token(environment, _):
    environment.setenv("RBIM_APP_TOKEN", "other-token")
    assert (await first_request()).query == await signature(APP_ID, "other-token")


async def token_in_file(environment, folder):
    environment.delenv("RBIM_APP_TOKEN")
    (folder / "token").write_text("file-token\n")
    environment.setenv("RBIM_APP_TOKEN_FILE", str(folder / "token"))
    assert (await first_request()).query == await signature(APP_ID, "file-token")


async def user_name(environment, _):
    environment.setenv("RBIM_USER_NAME", "boss")
    assert json.loads((await first_request()).body)["userName"] == "boss"


async def transport(environment, _):
    for name in ("asyncio", "aiohttp", "httpx"):
        environment.setenv("RBIM_TRANSPORT", name)
        assert type(AsyncClient.from_env()._shared.transport).__name__ == f"{name.capitalize()}Transport"


async def concurrency(environment, _):
    environment.setenv("RBIM_CONCURRENCY", "7")
    assert AsyncClient.from_env().load.places == 7


async def rates(environment, _):
    assert await times_of(3) == [0, 0, 0]
    environment.setenv("RBIM_RATES", "30/min, 1000/s")
    assert await times_of(3) == pytest.approx([0, 2, 4])


async def timeout(environment, _):
    environment.setenv("RBIM_TIMEOUT", "2.5")
    stub = Stub()
    async with AsyncClient.from_env(transport=stub, clock=stub.clock) as client:
        await client.send(READ)
    assert stub.timeouts == [2.5]


async def deadline(environment, _):
    environment.setenv("RBIM_DEADLINE", "3")
    stub = Stub(waits(100))
    async with AsyncClient.from_env(transport=stub, clock=stub.clock) as client:
        assert isinstance(await ending(client.send(READ)), DeadlineExceeded)
    assert stub.clock.elapsed == pytest.approx(3, abs=0.1)


async def callback_credentials_file(environment, folder):
    other = Credentials(app_id="second", app_token="second-token")
    (folder / "more.json").write_text(json.dumps([{"app_id": "second", "app_token": "second-token"}]))
    environment.setenv(OF_CALLBACKS, str(folder / "more.json"))
    receiver = Receiver.from_env(sink=MemorySink())
    async with receiver:
        headers = sign(b"{}", credentials=other, now=receiver.clock.now())
        assert (await receiver.receive(headers, b"{}")).status == 200


async def nats_files(environment, folder):
    names = ("CREDS", "CA", "CERT", "KEY")
    for name in names:
        (folder / name).touch()
        environment.setenv(f"RBIM_NATS_{name}_FILE", str(folder / name))
    found = NatsSettings.from_env()
    files = (found.credentials_file, found.ca_file, found.cert_file, found.key_file)
    assert files == tuple(folder / name for name in names)


OF_NATS = tuple(f"RBIM_NATS_{name}_FILE" for name in ("CREDS", "CA", "CERT", "KEY"))

CHANGES = {
    "RBIM_BASE_URL": base_url,
    "RBIM_CALL_BASE_URL": call_base_url,
    "RBIM_APP_ID": app_id,
    "RBIM_APP_TOKEN": app_token,
    "RBIM_APP_TOKEN_FILE": token_in_file,
    "RBIM_USER_NAME": user_name,
    "RBIM_TRANSPORT": transport,
    "RBIM_CONCURRENCY": concurrency,
    "RBIM_RATES": rates,
    "RBIM_TIMEOUT": timeout,
    "RBIM_DEADLINE": deadline,
    OF_CALLBACKS: callback_credentials_file,
    **dict.fromkeys(OF_NATS, nats_files),
}


@pytest.mark.parametrize("variable", DOCUMENTED)
async def test_every_documented_variable_changes_what_from_env_makes(environment, tmp_path, variable):
    """The page lists the variables; those of the dialect are tested with its fields."""
    await CHANGES[variable](environment, tmp_path)


WRONG = {
    "RBIM_BASE_URL": ["host:8883", "ftp://host", "https://host/2013-12-26", "https://host/2013-12-26/Application/a"],
    "RBIM_CALL_BASE_URL": ["host:8883", "https://u:p@host", "https://host/2013-12-26/"],
    "RBIM_APP_ID": ["a b", "\u00e9"],
    "RBIM_APP_TOKEN": ["a b", "\u00e9"],
    "RBIM_APP_TOKEN_FILE": ["/no/such/file"],
    "RBIM_TRANSPORT": ["htpx", "asyncio,httpx"],
    "RBIM_CONCURRENCY": ["0", "-1", "1.5", "many"],
    "RBIM_RATES": ["50", "50/s, 600", "fast"],
    "RBIM_TIMEOUT": ["0", "-1", "nan", "inf", "10s"],
    "RBIM_DEADLINE": ["0", "soon"],
    OF_CALLBACKS: ["/no/such/file"],
    **{variable: ["/no/such/file"] for variable in OF_NATS},
}


def test_every_documented_variable_is_tried_with_wrong_values():
    assert set(DOCUMENTED) == set(CHANGES)
    assert set(DOCUMENTED) - set(WRONG) == {"RBIM_USER_NAME"}  # any text is an account


def reader_of(variable):
    if variable in OF_NATS:
        return NatsSettings.from_env
    return partial(Receiver.from_env, sink=MemorySink()) if variable == OF_CALLBACKS else AsyncClient.from_env


@pytest.mark.parametrize(("variable", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_a_wrong_value_is_refused_with_the_name_of_its_variable(environment, variable, text):
    if variable == "RBIM_APP_TOKEN_FILE":
        environment.delenv("RBIM_APP_TOKEN")
    environment.setenv(variable, text)
    with pytest.raises(InvalidRequest, match=variable) as caught:
        reader_of(variable)()
    assert caught.value.field == variable


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("RBIM_BASE_URL", {"base_url": BASE_URL}),
        ("RBIM_CALL_BASE_URL", {"call_base_url": None}),
        ("RBIM_APP_ID", {"credentials": CREDENTIALS}),
        ("RBIM_TRANSPORT", {"transport": "httpx"}),
        ("RBIM_CONCURRENCY", {"limits": Limits()}),
        ("RBIM_RATES", {"limits": Limits()}),
        ("RBIM_TIMEOUT", {"timeout": 1}),
        ("RBIM_DEADLINE", {"deadline": 1}),
        ("RBIM_API_VERSION", {"dialect": Dialect()}),
    ],
)
def test_the_variable_of_an_option_that_is_given_is_not_read(environment, variable, option):
    environment.setenv(variable, WRONG.get(variable, ["a/b"])[0])
    AsyncClient.from_env(**option)


def test_limits_that_are_given_replace_both_of_their_variables(environment):
    environment.setenv("RBIM_CONCURRENCY", "7")
    environment.setenv("RBIM_RATES", "1/s")
    client = AsyncClient.from_env(limits=Limits(rates=[Rate(9)]))
    assert client.load.places == 100
    assert AsyncClient.from_env().load.places == 7


def test_a_version_that_only_the_client_can_see_is_named_with_its_variable(environment):
    environment.setenv("RBIM_API_VERSION", "v7")
    environment.setenv("RBIM_BASE_URL", f"{BASE_URL}/v7")
    with pytest.raises(InvalidRequest, match=f"base_url: use {BASE_URL} without /v7") as caught:
        AsyncClient.from_env()
    assert caught.value.__notes__ == ["base_url is from: environment variable RBIM_BASE_URL"]
