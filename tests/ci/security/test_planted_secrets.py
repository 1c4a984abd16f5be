"""No output has a planted secret in it, in any spelling; and every command has an entry in the list."""

import inspect

import pytest
from security import outputs
from security.outputs import COMMANDS_RUN, OUTPUTS, TRANSPORTS
from security.spellings import spelled
from security.world import World, command, environment

from helpers.commands import leaves
from helpers.transports import TRANSPORTS as EVERY_TRANSPORT
from rbim import errors


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with World(tmp_path_factory.mktemp("world")).open() as world:
        yield world


@pytest.mark.parametrize("name", OUTPUTS)
def test_no_output_has_a_planted_secret_in_it(name, world):
    parts = list(OUTPUTS[name](world))
    assert sum(map(len, parts)), "the output is empty: nothing was looked at"
    found = {(*each, excerpt(part, world.secrets[each[0]])) for part in parts for each in spelled(world.secrets, part)}
    assert found == set()


def excerpt(part, secret):
    text = part if isinstance(part, str) else part.decode("utf-8", "backslashreplace")
    at = max(text.lower().find(secret.lower()), 0)
    return ascii(text[max(at - 200, 0) : at + 100])


def test_every_command_transport_and_error_has_an_entry():
    assert set(leaves()) == COMMANDS_RUN
    assert set(EVERY_TRANSPORT) <= set(TRANSPORTS)
    public = {each for each in map(vars(errors).get, errors.__all__) if inspect.isclass(each)}
    assert {each for each in public if issubclass(each, errors.RbimError)} <= set(outputs._kinds())


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
