"""Tokens that change without a restart: the receiver asks a provider, and loses no genuine delivery."""

import itertools
import json
import random
import threading
import time

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from helpers.receiving import OLD, body, post
from helpers.receiving_asgi import Sink
from helpers.waiting import until
from rbim import Credentials, credential_source
from rbim.callbacks import Accepted, Keys, OldToken, Receiver, Refused, SqliteInbox
from rbim.clock import SystemClock
from rbim.config import callback_credentials_from_env
from rbim.errors import InvalidRequest

FORGED = Credentials(app_id=APP_ID, app_token="f" * 32)
OTHER = Credentials(app_id="b" * 32, app_token="1" * 32)
NUMBERS = itertools.count()


class Provider:
    """Returns what it is set to, counts, and fails or hangs when it is asked to."""

    def __init__(self, *credentials):
        self.credentials = credentials
        self.asked = []
        self.error = None
        self.pause = 0.0

    async def __call__(self):
        self.asked.append(time.monotonic())
        answer, error = self.credentials, self.error
        await anyio.sleep(self.pause)
        if error is not None:
            raise error
        return answer


def make(provider, facts, **options):
    settings = {"budget": 0.6, "refresh_pause": 0.05, "observers": [facts.append], "sink": Sink()}
    return Receiver(credentials=provider, **settings | options)


def of(facts, kind):
    return [each for each in facts if isinstance(each, kind)]


async def send(receiver, credentials):
    return (await post(receiver, body(msgId=str(next(NUMBERS))), credentials=credentials)).status


class LaterClock(SystemClock):
    """The machine's clock, some seconds later."""

    later = 0.0

    def pass_(self, seconds):
        self.later += seconds

    def monotonic(self):
        return super().monotonic() + self.later


def plain(provider):
    """The same provider as a plain function, which runs in a thread."""

    def ask():
        provider.asked.append(time.monotonic())
        return list(provider.credentials)

    return ask


@pytest.mark.parametrize("form", ["async", "plain"])
async def test_the_first_delivery_that_a_new_token_signed_is_accepted_and_the_old_one_goes_on(form, facts):
    provider = Provider(OLD)
    async with make(plain(provider) if form == "plain" else provider, facts) as receiver:
        assert await send(receiver, OLD) == 200
        provider.credentials = (CREDENTIALS,)
        assert await send(receiver, CREDENTIALS) == 200
        assert await send(receiver, OLD) == 200
        assert await send(receiver, FORGED) == 401
    (old,) = of(facts, OldToken)
    assert (old.key.app_id, old.key.index) == (APP_ID, 1)
    assert len(of(facts, Accepted)) == 3
    assert len(provider.asked) == 3


async def test_many_forged_deliveries_are_one_question_in_a_pause_and_a_new_token_is_known_meanwhile(facts):
    provider = Provider(OLD)
    receiver = make(provider, facts, refresh_pause=0.1)
    statuses = {FORGED: [], CREDENTIALS: []}

    async def one(credentials):
        statuses[credentials].append(await send(receiver, credentials))

    async with receiver, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(one, FORGED)
            if number == 100:
                provider.credentials = (CREDENTIALS,)
                tasks.start_soon(one, CREDENTIALS)
            await anyio.sleep(0.001)
    assert statuses == {FORGED: [401] * 200, CREDENTIALS: [200]}
    gaps = [later - earlier for earlier, later in itertools.pairwise(provider.asked)]
    assert sorted(gaps)[2] > 0.09  # after something new, as on entering, it may be asked at once
    assert len(gaps) >= 2


async def test_a_provider_that_fails_or_hangs_leaves_the_old_keys_and_shows_no_secret(facts, caplog):
    provider = Provider(CREDENTIALS)
    async with make(provider, facts, budget=0.2) as receiver:
        for wrong in (OSError(f"no such token: {TOKEN}"), InvalidRequest("the file cannot be read")):
            provider.error = wrong
            assert await send(receiver, CREDENTIALS) == 200
            assert await send(receiver, FORGED) == 401
        provider.error, provider.pause = None, 100
        began = time.monotonic()
        assert await send(receiver, FORGED) == 401
        assert time.monotonic() - began < 1
        assert await send(receiver, CREDENTIALS) == 200
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1  # one a minute
    assert "OSError" in errors[0]
    assert TOKEN not in caplog.text + repr(facts) + repr(receiver)


async def test_a_key_that_is_not_returned_any_more_is_accepted_for_the_grace_only(facts):
    clock, provider = LaterClock(), Provider(CREDENTIALS, OTHER)
    async with make(plain(provider), facts, clock=clock, grace=100, refresh_pause=0) as receiver:
        provider.credentials = (CREDENTIALS,)
        assert await send(receiver, FORGED) == 401
        clock.pass_(99)
        assert await send(receiver, OTHER) == 200
        assert [(each.key.app_id, each.key.current) for each in of(facts, OldToken)] == [(OTHER.app_id, False)]
        clock.pass_(2)
        assert await send(receiver, OTHER) == 401
        assert await send(receiver, CREDENTIALS) == 200


async def test_keys_are_asked_for_again_after_a_while_without_any_refusal(facts):
    clock, provider = LaterClock(), Provider(CREDENTIALS, OTHER)
    async with make(plain(provider), facts, clock=clock, grace=0) as receiver:
        provider.credentials = (CREDENTIALS,)
        assert await send(receiver, OTHER) == 200
        clock.pass_(301)
        assert await send(receiver, CREDENTIALS) == 200
        await until(lambda: len(provider.asked) == 2)
        await anyio.sleep(0.02)
        assert await send(receiver, OTHER) == 401


def test_retired_keys_are_never_current():
    shown = repr(Keys(CREDENTIALS, retired=[OLD, OTHER]))
    assert shown == f"Keys({APP_ID}, {APP_ID} (older token 1), {OTHER.app_id} (older token 1))"


async def test_a_token_file_that_changes_under_load_costs_no_genuine_delivery(tmp_path, monkeypatch, facts):
    """`callback_credentials_from_env` is the provider; the platform changes the token a moment after the file."""
    file, tokens = tmp_path / "token", [f"{number:032x}" for number in range(5)]

    def write(token):
        new = tmp_path / "new"
        new.write_text(json.dumps([{"app_id": APP_ID, "app_token": token}]))
        new.replace(file)

    write(tokens[0])
    monkeypatch.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(file))
    for name in ("RBIM_APP_TOKEN", "RBIM_APP_ID"):
        monkeypatch.delenv(name, raising=False)
    receiver = make(callback_credentials_from_env, facts, sink=SqliteInbox(tmp_path / "events.db"), budget=2.0)
    signing, genuine, forged = Credentials(app_id=APP_ID, app_token=tokens[0]), [], []
    over, chance = False, random.Random(7)

    async def platform():
        while not over:
            credentials = FORGED if chance.random() < 0.3 else signing
            status = await send(receiver, credentials)
            (forged if credentials == FORGED else genuine).append(status)
            await anyio.sleep(0.001)

    async with receiver, anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(platform)
        for token in tokens[1:]:
            known = len(genuine)
            await until(lambda known=known: len(genuine) > known + 10)
            write(token)
            await anyio.sleep(0.03)
            signing = Credentials(app_id=APP_ID, app_token=token)
        await until(lambda: len(genuine) > 100 and len(forged) > 20)
        over = True
    assert (set(genuine), set(forged)) == ({200}, {401})
    assert {each.detail for each in of(facts, Refused)} == {"CheckSum matches none of the tokens"}
    assert threading.active_count() < 20


async def test_a_plain_provider_that_hangs_holds_one_thread_and_is_asked_again_when_it_has_ended(monkeypatch, facts):
    monkeypatch.setattr(credential_source, "PROVIDER_TIMEOUT", 0.05)
    hangs, over, asked = threading.Event(), threading.Event(), []

    def provider():
        asked.append(threading.get_ident())
        if hangs.is_set():
            over.wait(10)
        return CREDENTIALS if over.is_set() else OLD

    async with make(provider, facts, refresh_pause=0.001, budget=0.3) as receiver:
        hangs.set()
        try:
            assert [await send(receiver, FORGED) for _ in range(6)] == [401] * 6
            assert len(asked) == 2  # on entering, and the one that hangs
        finally:
            over.set()
        await anyio.sleep(0.05)
        assert await send(receiver, CREDENTIALS) == 200
    assert len(asked) == 3
