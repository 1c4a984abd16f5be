"""What a service hands to a client: URL and secret types of other libraries; opening and closing without a block."""

import anyio
import httpx
import pytest
import yarl

from helpers.stubs import CREDENTIALS, READ, TOKEN, Stub, client_over, failing
from rbim import AsyncClient, ClientClosed, Credentials, InvalidRequest


async def sent_to(url):
    stub = Stub()
    async with AsyncClient(base_url=url, call_base_url=url, credentials=CREDENTIALS, transport=stub) as client:
        await client.send(READ)
    return stub.requests[0].origin


URLS = ["https://im.example:8883", "https://im.example/prefix", "http://[::1]:8080"]


async def test_urls_of_other_libraries_are_addresses():
    for kind in (httpx.URL, yarl.URL):
        assert [await sent_to(kind(url)) for url in URLS] == URLS


@pytest.mark.ci  # pydantic comes with FastAPI, which the extra `dev` does not have
async def test_urls_and_secrets_of_pydantic_are_addresses_and_tokens():
    pydantic = pytest.importorskip("pydantic")
    for kind in (pydantic.AnyHttpUrl, pydantic.HttpUrl, pydantic.AnyUrl):
        assert [await sent_to(kind(url)) for url in URLS] == URLS
    made = Credentials(app_id=CREDENTIALS.app_id, app_token=pydantic.SecretStr(TOKEN))
    assert made == CREDENTIALS
    assert TOKEN not in repr(made)
    for wrong in (pydantic.SecretStr("two words"), pydantic.SecretStr("")):
        refused_token(wrong)


def refused_token(wrong):
    with pytest.raises(InvalidRequest, match="app_token") as refused:
        Credentials(app_id="a", app_token=wrong)
    assert not {"words", "bytes"} & set(str(refused.value).split())


def test_an_unfit_url_or_token_is_refused_by_name_without_its_text():
    for url in ("ftp://im.example", "https://user:word@im.example", "https://im.example?x=1"):
        with pytest.raises(InvalidRequest, match="base_url: an address such as") as refused:
            AsyncClient(base_url=yarl.URL(url), credentials=CREDENTIALS, transport=Stub())
        assert "word" not in str(refused.value)
    for wrong in (None, 7, b"a token of bytes", object()):
        refused_token(wrong)


async def test_a_client_can_be_opened_and_closed_without_a_block():
    stub = Stub()
    client = await client_over(stub).open()
    await client.send(READ)
    assert (stub.entered, stub.left) == (1, 0)
    await client.aclose()
    await client.aclose()
    assert (stub.entered, stub.left) == (1, 1)
    assert isinstance(await failing(client.send(READ)), ClientClosed)
    with pytest.raises(RuntimeError, match="entered once"):
        await client.open()


async def test_a_client_that_was_never_opened_can_be_closed():
    stub = Stub()
    await client_over(stub).aclose()
    assert (stub.entered, stub.left) == (0, 0)


async def test_a_client_that_is_left_twice_leaves_its_transport_once():
    """Other clients may use the transport: a hook that closes the client inside its block must not close it for them."""
    stub = Stub()
    async with client_over(stub) as client:
        await client.aclose()
        await client.__aexit__(None, None, None)
    assert (stub.entered, stub.left) == (1, 1)
    await client_over(stub).__aexit__(None, None, None)  # never entered
    assert stub.left == 1


async def test_a_client_that_is_being_opened_cannot_be_closed():
    class Slow(Stub):
        async def __aenter__(self):
            opening.set()
            await self.clock.sleep(10)
            return await super().__aenter__()

    opening, client = anyio.Event(), client_over(Slow())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.open)
        await opening.wait()
        with pytest.raises(RuntimeError, match="being opened by another task"):
            await client.aclose()
    await client.aclose()
