"""Every argument of a constructor with a value of the wrong kind: it is refused at once, with its name, or it works."""

import inspect
from pathlib import Path

import pytest

from helpers.stubs import BASE_URL, CREDENTIALS, Stub
from rbim import AsyncClient, ClientOptions, InvalidRequest, InviteJoinGroup, Limits, LoggingObserver, Observer, Rate, Retry
from rbim.bulk import InviteJob, Job, JobOptions, RemoveJob, RunOptions
from rbim.callbacks import MemorySink, Receiver, ReceiverOptions
from rbim.client.settings import KEYS
from rbim.config import ConfigOptions
from rbim.transports.httpx import HttpxTransport

WRONG = [
    "",
    "50/s",
    "asyncioo",
    b"x",
    0,
    -1,
    7,
    2.5,
    float("nan"),
    True,
    None,
    [],
    ["x"],
    [None],
    {},
    {"a": 1},
    object(),
    object,
]
"""Values of many kinds; None and an empty list are right for some arguments, and so are numbers and texts."""


class Sender:
    async def send(self, operation, /):
        raise AssertionError(operation)


def client(**options):
    return AsyncClient(**({"base_url": BASE_URL, "credentials": CREDENTIALS, "transport": Stub()} | options))


def receiver(**options):
    return Receiver(**({"credentials": CREDENTIALS, "sink": MemorySink()} | options))


def job(**options):
    return Job(**({"sender": Sender(), "operation": InviteJoinGroup, "journal": "a.journal"} | options))


def invite_job(**options):
    return InviteJob(**({"sender": Sender(), "journal": "a.journal"} | options))


def remove_job(**options):
    return RemoveJob(**({"sender": Sender(), "journal": "a.journal"} | options))


def names_of(kind):
    signature = inspect.signature(kind)
    names = [name for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD]
    shared = list(inspect.signature(Job).parameters)[4:] if kind in {InviteJob, RemoveJob} else []
    return names + shared


CASES = [
    (make, name, wrong)
    for make, kind in [
        (client, AsyncClient),
        (receiver, Receiver),
        (job, Job),
        (invite_job, InviteJob),
        (remove_job, RemoveJob),
    ]
    for name in names_of(kind)
    for wrong in WRONG
    if not (name == "user_name" and wrong == "" and make is not client)  # see the tests of the operations
]

# Right all the same: for these arguments any value of the kind is.
RIGHT = {
    ("client", "base_url"): (),
    ("client", "call_base_url"): ("", None),
    ("client", "credentials"): (),
    ("client", "signer"): (None,),
    ("client", "user_name"): ("50/s", "asyncioo", None),
    ("client", "transport"): (None,),
    ("client", "dialect"): (None,),
    ("client", "limits"): (None,),
    ("client", "timeout"): (7, 2.5),
    ("client", "deadline"): (7, 2.5),
    ("client", "retry"): (None,),
    ("client", "clock"): (None,),
    ("client", "observers"): ([], {}, ""),
    ("client", "hooks"): (None,),
    ("client", "name"): ("", "50/s", "asyncioo"),
    ("receiver", "credentials"): (),
    ("receiver", "sink"): (),
    ("receiver", "grace"): (0, 7, 2.5),
    ("receiver", "refresh_pause"): (0, 7, 2.5),
    ("receiver", "name"): ("", "50/s", "asyncioo"),
    ("receiver", "mode"): (),
    ("receiver", "policy"): (None,),
    ("receiver", "dialect"): (None,),
    ("receiver", "budget"): (7, 2.5),
    ("receiver", "spool"): ("50/s", "asyncioo", None),
    ("receiver", "clock"): (None,),
    ("receiver", "observers"): ([], {}, ""),
    ("receiver", "router"): (None,),
    ("receiver", "around"): (None,),
    ("receiver", "own_thread"): (True,),
    ("receiver", "concurrency"): (7,),
    ("receiver", "timeout"): (7, 2.5),
    ("receiver", "backoff"): (None,),
    ("receiver", "drain"): (0, 7, 2.5),
    ("receiver", "health"): (None,),
    ("job", "sender"): (),
    ("job", "operation"): (),
    ("job", "journal"): ("50/s", "asyncioo"),
    ("job", "options"): (None, {}),
    ("job", "chunk"): (7, None),
    ("job", "rates"): ([], {}),
    ("job", "concurrency"): (7,),
    ("job", "adaptive"): (True,),
    ("job", "max_failures"): (0, 7, None),
    ("job", "patience"): (7, 2.5),
    ("job", "isolate"): (0, 7),
    ("job", "retry"): (None,),
    ("job", "resend_within"): (0, 7, 2.5),
    ("job", "dialect"): (None,),
    ("job", "clock"): (None,),
    ("invite_job", "needs_confirmation"): (True,),
    ("invite_job", "declared"): ("", "50/s", "asyncioo", None),
    ("invite_job", "user_name"): ("50/s", "asyncioo", None),
    ("remove_job", "user_name"): ("50/s", "asyncioo", None),
}


def is_right(make, name, value):
    right = RIGHT.get((make.__name__, name)) or RIGHT[make.__name__ if make is client or make is receiver else "job", name]
    return any(type(value) is type(each) and value == each for each in right)


@pytest.mark.parametrize(("make", "name", "value"), CASES, ids=lambda each: getattr(each, "__name__", repr(each)[:20]))
def test_an_argument_of_the_wrong_kind_is_refused_by_name_at_once(make, name, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if is_right(make, name, value):
        make(**{name: value})
        return
    with pytest.raises(InvalidRequest) as caught:
        make(**{name: value})
    assert name in {caught.value.field, str(caught.value).partition(":")[0]} or "signer=" in str(caught.value)


@pytest.mark.parametrize(
    "secret", ["0d1d9c4c1b0d4b38a2e1b9cb63c8a1b7", ["0d1d9c4c1b0d4b38a2e1b9cb63c8a1b7"]], ids=["text", "list"]
)
@pytest.mark.parametrize(("make", "name"), sorted({(make, name) for make, name, _ in CASES}, key=str))
def test_a_token_in_the_wrong_argument_is_not_quoted(make, name, secret, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        made = make(**{name: secret})
    except InvalidRequest as error:
        made = error
    assert not isinstance(made, InvalidRequest) or "b9cb63c8" not in f"{made} {made!r} {made.args} {vars(made)}"


def test_the_table_has_every_argument():
    made = {(make.__name__ if make in {client, receiver} else "job", name) for make, name, _ in CASES}
    own = {(make.__name__, name) for make, name, _ in CASES}
    assert set(RIGHT) <= made | own
    assert all(key in RIGHT or ("job", key[1]) in RIGHT for key in own)


# ------------------------------------------------------------------------------ texts that rbim.toml takes


def test_rates_of_a_job_are_rates_or_their_texts():
    rates = [Rate(50), "600/min", Rate(1, each_group=True)]
    for given in (rates, tuple(rates), iter(rates)):
        assert job(rates=given).settings.rates == (Rate(50), Rate(600, 60), Rate(1, each_group=True))
    assert invite_job(rates=["50/s"]).settings.rates == remove_job(rates=[Rate(50)]).settings.rates


@pytest.mark.parametrize("text", ["50/s", "50"])
def test_a_text_in_place_of_a_list_of_rates_is_refused_with_the_right_form(text):
    with pytest.raises(InvalidRequest, match=r'rates: a list such as \["50/s"\] is needed, not str'):
        job(rates=text)
    with pytest.raises(InvalidRequest, match=r"limits: Limits\(concurrency=..., rates=\[...\]\) is needed, not str"):
        client(limits=text)


def test_a_transport_may_be_named_and_a_wrong_name_is_refused_at_once():
    assert type(client(transport="asyncio")._shared.transport).__name__ == "AsyncioTransport"
    with pytest.raises(InvalidRequest, match="transport: 'asyncioo' is not a transport; known are auto, httpx"):
        client(transport="asyncioo")


# ------------------------------------------------------------------------------ mistakes that are easily made


@pytest.mark.parametrize(
    ("make", "wrong", "words"),
    [
        (client, {"transport": HttpxTransport}, "transport: .* not the class HttpxTransport"),
        (client, {"observers": LoggingObserver()}, "observers: a list of observers, such as .* not LoggingObserver"),
        (client, {"observers": [LoggingObserver]}, "observers: .* not the class LoggingObserver"),
        (
            client,
            {"credentials": ("app", "token")},
            r"credentials: Credentials\(.*\) is needed, not tuple",
        ),
        (client, {"credentials": None}, "credentials: give either credentials=.* or signer="),
        (job, {"journal": ""}, "journal: the path of a file is needed, not an empty text"),
        (receiver, {"spool": ""}, "spool: the path of a file is needed, not an empty text"),
        (client, {"retry": 3}, r"retry: Retry\(attempts=...\) is needed"),
        (client, {"limits": 100}, r"limits: Limits\(.* not int"),
        (client, {"dialect": {"api_version": "2016-08-15"}}, r"dialect: Dialect\(...\) is needed, not dict"),
        (receiver, {"sink": "events.db"}, r'sink: a sink such as SqliteInbox\("events.db"\) is needed, not str'),
        (receiver, {"sink": MemorySink}, "sink: .* not the class MemorySink"),
        (receiver, {"concurrency": 0}, "concurrency: at least 1"),
        (receiver, {"drain": "10s"}, "drain: use a number of seconds"),
        (job, {"operation": "InviteJoinGroup"}, "operation: an operation's class, such as InviteJoinGroup, is needed"),
        (job, {"sender": Sender}, "sender: .* not the class Sender"),
        (job, {"retry": 3}, r"retry: Retry\(attempts=...\) is needed, not int"),
        (job, {"adaptive": "no"}, "adaptive: True or False is needed, not str"),
    ],
    ids=lambda each: getattr(each, "__name__", next(iter(each)) if isinstance(each, dict) else ""),
)
def test_the_right_form_is_in_the_message(make, wrong, words):
    with pytest.raises(InvalidRequest, match=words):
        make(**wrong)


@pytest.mark.parametrize("secret", ["the-token", ("app", "the-token"), {"app": "the-token"}])
def test_a_token_in_the_wrong_place_is_not_shown(secret):
    for make, name in [(client, "credentials"), (client, "signer"), (client, "limits"), (receiver, "credentials")]:
        with pytest.raises(InvalidRequest) as caught:
            make(**{name: secret})
        assert "the-token" not in f"{caught.value!r} {vars(caught.value)}"


def test_an_observer_may_have_only_the_methods_that_it_needs():
    class Own:
        def call_ended(self, event, /):
            """Do nothing."""

    class Derived(Observer):
        """Overrides nothing."""

    client(observers=[Own(), Derived()])
    client(observers=iter([Own()]), retry=Retry(attempts=1), limits=Limits(concurrency=1))


def test_paths_may_be_paths():
    assert job(journal=Path("x.journal")).journal == Path("x.journal").absolute()
    receiver(spool=Path("x.spool"))


# ------------------------------------------------------------------------------ arguments that are passed on


@pytest.mark.parametrize("options", [ClientOptions, ReceiverOptions, JobOptions])
def test_the_options_that_are_passed_on_are_those_of_the_constructor(options):
    kind, without = {
        "ClientOptions": (AsyncClient, set()),
        "ReceiverOptions": (Receiver, {"sink"}),
        "JobOptions": (Job, {"sender", "operation", "journal", "options"}),
    }[options.__name__]
    parameters = inspect.signature(kind).parameters
    own = {name: each.annotation for name, each in parameters.items() if name not in without}
    assert {name: getattr(each, "__forward_arg__", each) for name, each in options.__annotations__.items()} == own
    assert set(options.__required_keys__) == set()
    assert set(RunOptions.__annotations__) == set(JobOptions.__annotations__) - {"chunk"}


def test_the_arguments_of_load_are_the_keys_of_a_profile():
    assert list(ConfigOptions.__annotations__) == list(KEYS)
