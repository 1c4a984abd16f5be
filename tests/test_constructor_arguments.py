"""Every argument of a constructor with a value of the wrong kind: it is refused at once, with its name, or it works."""

import inspect

import attrs
import pytest

from helpers.credentials import TOKEN
from helpers.stubs import BASE_URL, CREDENTIALS, Stub
from helpers.tables import each_row
from rbim import AsyncClient, ClientOptions, InvalidRequest, InviteJoinGroup, LoggingObserver
from rbim.bulk import InviteJob, Job, JobOptions, RemoveJob, RunOptions
from rbim.bulk.settings import JobSettings
from rbim.callbacks import MemorySink, Receiver, ReceiverOptions
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
    shared = list(JobOptions.__annotations__) if kind in {Job, InviteJob, RemoveJob} else []
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

RIGHT = {
    **dict.fromkeys(("base_url", "credentials", "sink", "mode", "sender", "operation"), ()),
    **dict.fromkeys(("signer", "transport", "dialect", "limits", "retry", "clock", "hooks", "policy"), (None,)),
    **dict.fromkeys(("router", "around", "backoff", "health"), (None,)),
    **dict.fromkeys(("timeout", "deadline", "budget", "patience"), (7, 2.5)),
    **dict.fromkeys(("grace", "refresh_pause", "drain", "resend_within"), (0, 7, 2.5)),
    **dict.fromkeys(("adaptive", "needs_confirmation"), (True,)),
    "call_base_url": ("", None),
    "user_name": ("50/s", "asyncioo", None),
    "declared": ("", "50/s", "asyncioo", None),
    "observers": ([], {}, ""),
    "name": ("", "50/s", "asyncioo"),
    "user_agent": ("", "50/s", "asyncioo"),
    "spool": ("50/s", "asyncioo", None),
    "journal": ("50/s", "asyncioo"),
    "concurrency": (7,),
    "options": (None, {}),
    "chunk": (7, None),
    "rates": ("50/s", [], {}),
    "max_failures": (0, 7, None),
    "isolate": (0, 7),
}
"""What of it is right for an argument, whoever has it."""


def is_right(name, value):
    return any(type(value) is type(each) and value == each for each in RIGHT[name])


@each_row("make, name, value", CASES)
def test_an_argument_of_the_wrong_kind_is_refused_by_name_at_once(make, name, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if is_right(name, value):
        make(**{name: value})
        return
    with pytest.raises(InvalidRequest) as caught:
        make(**{name: value})
    assert name in {caught.value.field, str(caught.value).partition(":")[0]} or "signer=" in str(caught.value)


@each_row("make, name", sorted({(make, name) for make, name, _ in CASES}, key=str))
@each_row("secret", [TOKEN, [TOKEN], ("app", TOKEN), {"app": TOKEN}])
def test_a_token_in_the_wrong_argument_is_not_quoted(make, name, secret, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        made = make(**{name: secret})
    except InvalidRequest as error:
        made = error
    assert not isinstance(made, InvalidRequest) or TOKEN[-8:] not in f"{made} {made!r} {made.args} {vars(made)}"


# ------------------------------------------------------------------------------ mistakes that are easily made


@each_row(
    "make, wrong, words",
    [
        (client, {"transport": HttpxTransport}, "transport: .* not the class HttpxTransport"),
        (
            client,
            {"observers": LoggingObserver()},
            "observers: a list of functions .* not LoggingObserver",
        ),
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
        (job, {"adaptive": "no"}, "adaptive: bool is needed, not 'no'"),
    ],
)
def test_the_right_form_is_in_the_message(make, wrong, words):
    with pytest.raises(InvalidRequest, match=words):
        make(**wrong)


# ------------------------------------------------------------------------------ arguments that are passed on


@each_row("options", [ClientOptions, ReceiverOptions])
def test_the_options_that_are_passed_on_are_those_of_the_constructor(options):
    kind, without = {
        "ClientOptions": (AsyncClient, set()),
        "ReceiverOptions": (Receiver, {"sink"}),
    }[options.__name__]
    parameters = inspect.signature(kind).parameters
    own = {name: each.annotation for name, each in parameters.items() if name not in without}
    assert {name: getattr(each, "__forward_arg__", each) for name, each in options.__annotations__.items()} == own
    assert set(options.__required_keys__) == set()


def test_the_options_of_a_job_are_its_settings_and_what_all_jobs_share():
    names = {each.name for each in attrs.fields(JobSettings)} | {"dialect", "clock"}
    assert set(RunOptions.__annotations__) == names
    assert set(JobOptions.__annotations__) == names | {"chunk"}
