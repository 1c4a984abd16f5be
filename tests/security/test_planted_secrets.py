"""No output has a planted secret in it, in any spelling; and every output has an entry in the list."""

import inspect
import re
import sys

import pytest
from security import on_servers
from security.outputs import OF_INBOXES, OUTPUTS
from security.spellings import spelled
from security.world import World, command, environment

import rbim
from helpers.commands import function_of, leaves
from helpers.transports import TRANSPORTS
from rbim import errors
from rbim.emulator.server.view_commands import COMMANDS
from rbim.storage.sqlite import FileKind


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with World(tmp_path_factory.mktemp("world")).open() as world:
        yield world


# Outputs that still show a secret, and why; each entry goes when its output is mended.
UNIQUE = {make: name for name, make in reversed(OUTPUTS.items())}  # several entries may be one function


LONG = {"command demo, on machines"}
MARKS = [pytest.mark.slow, pytest.mark.ci, pytest.mark.cluster]


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS if name in LONG else []) for name in UNIQUE.values()])
def test_no_output_has_a_planted_secret_in_it(name, world):
    parts = list(OUTPUTS[name](world))
    assert sum(map(len, parts)), "the output is empty: nothing was looked at"
    found = {(*each, excerpt(part, world.secrets[each[0]])) for part in parts for each in spelled(world.secrets, part)}
    assert found == set()


def excerpt(part, secret):
    """Return the text around a secret, for the message."""
    text = part if isinstance(part, str) else part.decode("utf-8", "backslashreplace")
    at = max(text.lower().find(secret.lower()), 0)
    return ascii(text[max(at - 200, 0) : at + 100])


def test_every_command_has_an_entry():
    assert {f"command {name}" for name in leaves()} <= OUTPUTS.keys()


def test_every_command_with_an_inbox_has_an_entry_for_one_on_servers():
    taking = {name for name in leaves() if "inbox" in inspect.signature(function_of(name)).parameters}
    assert taking == {*OF_INBOXES, "callback serve", "callback work"}
    assert {f"command {name}, on servers" for name in taking} <= OUTPUTS.keys()


def test_everything_on_servers_is_of_a_known_kind(world):
    """A subject, a stream, a consumer or a key of no kind has to be looked at: add its kind, and see that it occurs."""
    seen = on_servers.seen(world)
    names = {
        "SUBJECTS": {subject for subject, _, _ in seen.passed},
        "STREAMS": seen.streams.keys(),
        "CONSUMERS": seen.consumers,
        "KEYS": {key for keys in seen.keys.values() for key in keys},
    }
    for what, found in names.items():
        kinds = getattr(on_servers, what)
        assert {name for name in found if on_servers.kind_of(name, kinds) is None} == set(), what
        assert {on_servers.kind_of(name, kinds) for name in found} == kinds.keys(), what


KINDS = {b"rbim": "file inbox", b"rbsp": "file spool", b"rbjb": "file job"}


def test_every_kind_of_file_has_an_entry():
    """By its mark: each database of rbim has one of its own."""
    owners = [each for name, each in sys.modules.items() if name.split(".")[0] == "rbim"]
    owners += [each for module in owners for each in vars(module).values() if inspect.isclass(each)]
    marks = {each.mark for owner in owners for each in vars(owner).values() if isinstance(each, FileKind)}
    assert marks == KINDS.keys()
    assert set(KINDS.values()) <= OUTPUTS.keys()


def test_every_reading_command_of_the_control_interface_has_an_entry():
    assert {f"control {each.path}" for each in COMMANDS if each.method == "GET"} <= OUTPUTS.keys()


def test_every_transport_has_an_entry():
    assert {f"transport {name}" for name in TRANSPORTS} <= OUTPUTS.keys()


def test_every_error_has_an_entry():
    public = {each for each in map(vars(rbim).get, rbim.__all__) if inspect.isclass(each) and issubclass(each, Exception)}
    named = {each for each in map(vars(errors).get, errors.__all__) if issubclass(each, errors.RbimError)}
    assert {f"error {each.__name__}" for each in public | named} <= OUTPUTS.keys()


@pytest.mark.parametrize("name", [name for name in UNIQUE.values() if name.removeprefix("command ") in leaves()])
def test_every_entry_of_a_command_is_one_that_runs(name, world):
    """An entry that only shows a usage error looks at nothing."""
    first = next(iter(OUTPUTS[name](world)))
    assert not re.search(rb"See: rbim .*--help|is required|[Uu]nknown (option|command)", first)


def test_every_signature_that_is_sent_is_looked_for(world):
    with environment(world.environment):
        command("groups", "detail", "g1")
        command("groups", "detail", "g1", "--transport", "aiohttp")
    for kind in ("sig", "Authorization"):
        sent = [secret for name, secret in world.secrets.items() if name.startswith(kind)]
        assert sent
        assert all(spelled(world.secrets, f"refused: {secret.lower()}") for secret in sent)


def test_an_entry_whose_output_shows_a_token_is_found(world):
    """The whole way: a command that writes what the environment holds."""
    with environment(world.environment | {"RBIM_PROFILE": world.secrets["application token"]}):
        assert spelled(world.secrets, command("config", "show"))
