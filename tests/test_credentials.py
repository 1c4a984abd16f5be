"""A client made from environment variables."""

import json
import pickle
import traceback

import pytest

from helpers.stubs import APP_ID, BASE_URL, CREDENTIALS, READ, TOKEN, Stub
from rbim import AppSigner, AsyncClient, Credentials, InvalidRequest

NAMES = ("RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN", "RBIM_APP_TOKEN_FILE", "RBIM_USER_NAME")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """A complete environment, and nothing of the machine's own."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(NAMES[:3], (BASE_URL, APP_ID, TOKEN), strict=True):
        monkeypatch.setenv(name, value)
    return monkeypatch


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
    with pytest.raises(InvalidRequest, match="app_token") as caught:
        AsyncClient.from_env()
    assert TOKEN not in shown(caught.value)
