"""A client made from environment variables."""

import json
import pickle
import re
from functools import partial
from traceback import format_exception

import pytest

from helpers.paths import ROOT
from helpers.shown import shown
from helpers.stubs import APP_ID, BASE_URL, CREDENTIALS, READ, TOKEN, Stub
from helpers.tables import each_row
from rbim import AppSigner, AsyncClient, Credentials, InvalidRequest, Limits
from rbim.callbacks import MemorySink, Receiver

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


@each_row("content", [TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n", f"  {TOKEN}\n\n"])
async def test_the_token_may_stand_in_a_file(token_file, content):
    token_file.write_bytes(content.encode())
    assert (await sent()).query == await signature(APP_ID, TOKEN)


@each_row("value", [None, ""])
@each_row("name", NAMES[:3])
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


@each_row("options", [{"credentials": CREDENTIALS}, {"signer": AppSigner(CREDENTIALS)}])
def test_what_an_option_says_need_not_be_in_the_environment(environment, options):
    for name in NAMES:
        environment.delenv(name, raising=False)
    assert APP_ID in repr(AsyncClient.from_env(base_url=BASE_URL, **options))


@each_row(
    "content",
    [
        TOKEN.encode("utf-16"),
        TOKEN.encode() + b"\xff",
        f"{TOKEN} {TOKEN}".encode(),
        f"{TOKEN}\u00e9".encode(),
        b"x\0y",
        f"{TOKEN}{TOKEN * 200}".encode(),
        b"",
        b"\n",
    ],
)
def test_a_token_that_cannot_be_one_is_refused_and_shown_nowhere(token_file, content):
    token_file.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        AsyncClient.from_env()
    assert TOKEN not in shown(caught.value).replace("\\x00", "")
    assert TOKEN.encode() not in pickle.dumps(caught.value)


def test_what_stands_in_the_place_of_a_files_name_is_not_shown(environment):
    for variable in (OF_CALLBACKS, "RBIM_APP_TOKEN_FILE"):
        for text in (TOKEN, f"{TOKEN}/+==", f"/{TOKEN}", json.dumps([{"app_id": APP_ID, "app_token": TOKEN}])):
            with environment.context() as patched:
                patched.setenv(variable, text)
                with pytest.raises(
                    InvalidRequest, match=f"{variable} names (does not exist|cannot be .*: No such file)"
                ) as caught:
                    Receiver.from_env(sink=MemorySink())
            assert TOKEN not in "".join(format_exception(caught.value))
        environment.delenv("RBIM_APP_TOKEN", raising=False)  # it would go before its file


# ------------------------------------------------------------------------------ every variable of the documentation

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
OF_JOBS = {"RBIM_GROUP_COLUMN", "RBIM_ACCOUNT_COLUMN", "RBIM_USER_NAME_COLUMN"}  # no part of a client or a receiver
DOCUMENTED = [name for name in re.findall(r"^\| `\w+` \| `(RBIM_\w+)` \|", PAGE, re.MULTILINE) if name not in OF_JOBS]
OF_CALLBACKS = "RBIM_CALLBACK_CREDENTIALS_FILE"


WRONG = {
    "RBIM_BASE_URL": ["host:8883", "ftp://host", "https://host/2013-12-26", "https://host/2013-12-26/Application/a"],
    "RBIM_CALL_BASE_URL": ["host:8883", "https://u:p@host", "https://host/2013-12-26/"],
    "RBIM_APP_ID": ["a b", "\u00e9"],
    "RBIM_APP_TOKEN": ["a b", "\u00e9"],
    "RBIM_APP_TOKEN_FILE": ["/no/such/file"],
    "RBIM_USER_AGENT": ["\u00e9", "a\nb"],
    "RBIM_TRANSPORT": ["htpx", "asyncio,httpx"],
    "RBIM_CONCURRENCY": ["0", "-1", "1.5", "many"],
    "RBIM_RATES": ["50", "50/s, 600", "fast"],
    "RBIM_TIMEOUT": ["0", "-1", "nan", "inf", "10s"],
    "RBIM_DEADLINE": ["0", "soon"],
    OF_CALLBACKS: ["/no/such/file"],
}


def test_every_documented_variable_is_tried_with_wrong_values():
    assert set(DOCUMENTED) - set(WRONG) == {"RBIM_USER_NAME"}  # any text is an account


def reader_of(variable):
    return partial(Receiver.from_env, sink=MemorySink()) if variable == OF_CALLBACKS else AsyncClient.from_env


@each_row("variable, text", [(name, text) for name, texts in WRONG.items() for text in texts])
def test_a_wrong_value_is_refused_with_the_name_of_its_variable(environment, variable, text):
    if variable == "RBIM_APP_TOKEN_FILE":
        environment.delenv("RBIM_APP_TOKEN")
    environment.setenv(variable, text)
    with pytest.raises(InvalidRequest, match=variable) as caught:
        reader_of(variable)()
    assert caught.value.field == variable


@each_row(
    "variable, option",
    [
        ("RBIM_BASE_URL", {"base_url": BASE_URL}),
        ("RBIM_TRANSPORT", {"transport": "httpx"}),
        ("RBIM_RATES", {"limits": Limits()}),
        ("RBIM_TIMEOUT", {"timeout": 1}),
    ],
)
def test_a_wrong_variable_is_an_error_also_if_an_option_takes_its_place(environment, variable, option):
    environment.setenv(variable, WRONG[variable][0])
    with pytest.raises(InvalidRequest, match=f"^{variable}: "):
        AsyncClient.from_env(**option)


def test_a_version_that_only_the_client_can_see_is_named_with_its_variable(environment):
    environment.setenv("RBIM_DIALECT", "api_version=v7")
    environment.setenv("RBIM_BASE_URL", f"{BASE_URL}/v7")
    with pytest.raises(InvalidRequest, match=f"base_url: use {BASE_URL} without /v7") as caught:
        AsyncClient.from_env()
    assert caught.value.__notes__ == ["base_url is from: RBIM_BASE_URL"]
