"""The connection opens in the background and again after failures; addresses hold no secrets."""

import asyncio
import subprocess
import sys

import anyio
import pytest

from rbim.errors import InvalidRequest
from rbim.jetstream.connection import Connection
from rbim.jetstream.settings import NatsSettings, addresses


def connection(urls, prepare):
    return Connection(addresses(urls), NatsSettings(), name="test", prepare=prepare)


async def nothing(_):
    pass


@pytest.mark.parametrize(
    "wrong", ["", [], "http://h", "nats://h/name", "nats://h:port", "nats://h?x=1", "h,,h", [None], "nats://:4222"]
)
def test_wrong_addresses(wrong):
    with pytest.raises(InvalidRequest, match="servers: "):
        addresses(wrong)


def test_settings_of_the_environment(bare_environment, tmp_path):
    assert NatsSettings.from_env() == NatsSettings()
    bare_environment.setenv("RBIM_NATS_CREDS_FILE", str(tmp_path / "none.creds"))
    with pytest.raises(InvalidRequest, match=r"RBIM_NATS_CREDS_FILE: .* no file"):
        NatsSettings.from_env()
    (tmp_path / "none.creds").touch()
    assert NatsSettings.from_env().credentials_file == tmp_path / "none.creds"
    bare_environment.setenv("RBIM_NATS_CERT_FILE", str(tmp_path / "none.creds"))
    with pytest.raises(InvalidRequest, match="both or none"):
        NatsSettings.from_env()


def test_a_credentials_file_with_the_line_ends_of_windows_is_named(bare_environment, tmp_path):
    file = tmp_path / "a.creds"
    file.write_bytes(b"-----BEGIN USER NKEY SEED-----\r\nSUA\r\n")
    bare_environment.setenv("RBIM_NATS_CREDS_FILE", str(file))
    with pytest.raises(InvalidRequest, match=r"RBIM_NATS_CREDS_FILE: .*a\.creds has the line ends of Windows \(CRLF\)"):
        NatsSettings.from_env()


def test_a_missing_library_names_the_extra():
    program = "import sys; sys.modules['nats'] = None; import rbim.jetstream.connection"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 'python -m pip install "rbim[nats]"' in ended.stderr.splitlines()[-1]


async def test_a_server_that_starts_later_is_found(own_nats):
    own_nats.kill()
    async with connection(own_nats.urls, nothing) as late:
        own_nats.start(0)
        assert await (await late.jetstream()).account_info()
        own_nats.kill()
        with anyio.fail_after(20):
            while late.ready:
                await asyncio.sleep(0.01)
        own_nats.start(0)
        assert await (await late.jetstream()).account_info()
        assert late.ready
