"""The server of the emulator and peers that leave, do not read, or come too late, seen by plain sockets."""

import logging
import socket
import struct

import pytest

from helpers.rawclient import arrived, connected, create, signed, turns
from helpers.tables import each_row
from rbim.emulator.faults import Code, CutShort, Fault, Latency, ResetAfter, Status
from rbim.emulator.server.server import serve


@pytest.fixture
async def server(emulator):
    async with serve(emulator) as server:
        yield server


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


@each_row("status", [204, 304])
async def test_a_status_without_a_body_keeps_the_connection_in_order(emulator, server, status):
    emulator.faults.add(Fault(effect=Status(status), nth=(1,)))
    async with connected(server) as raw:
        assert (await raw.ask(create(emulator))).status == status
        assert (await raw.ask(create(emulator))).status == 200


async def test_a_peer_that_leaves_early_does_no_harm(emulator, server, log):
    async with connected(server) as raw:
        await raw.send(create(emulator)[:-1])
        await turns()
    emulator.faults.add(Fault(effect=Latency(1)), Fault(effect=ResetAfter(), nth=(1,)), Fault(effect=CutShort(), nth=(2,)))
    for number in (1, 2, 3):
        async with connected(server) as raw:
            await raw.send(create(emulator))
            await arrived(emulator, number)
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await turns()
    await emulator.clock.advance(1)
    await turns()
    assert len(emulator.state.groups) == 3
    assert not [record for record in log.records if record.levelno > logging.INFO]


async def test_a_peer_that_reads_late_gets_every_answer(emulator, server):
    emulator.faults.add(Fault(effect=Code("1", "x" * 100_000)))
    async with connected(server) as raw:
        await raw.send(signed(emulator, "SearchPublicGroups") * 100)
        await turns(200)
        assert 0 < len(emulator.requests) < 100  # it is not worked for either, meanwhile
        answers = [await raw.answer() for _ in range(100)]
    assert {(answer.status, len(answer.document["statusMsg"])) for answer in answers} == {(200, 100_000)}
