"""The record of a partition: what is settled stays settled, whoever writes it next; pure, so every order is tried."""

import random

import pytest

from rbim.errors import InvalidRequest
from rbim.jetstream.ownership import Watch
from rbim.jetstream.record import Blame, Owner, Record, owner_of

ME = Owner(boot="me", writes=3, takeover=15.0)


def handed_over(record):
    return Record.parse(record.value(ME))


def test_a_new_partition():
    record = Record.parse(None)
    assert (record.floor, record.read, record.settled_above) == (0, 0, 0)
    assert owner_of(record.value(ME)) == ME


@pytest.mark.parametrize("seed", range(30))
def test_settled_messages_stay_settled_through_any_number_of_owners(seed):
    """Messages are read in order, settled in any order, and the record is handed over at any moment."""
    chance = random.Random(seed)
    messages = sorted(chance.sample(range(1, 400), 60))  # the others belong to other partitions
    settled, record, position = set(), Record(), 0
    for _ in range(400):
        step = chance.random()
        if step < 0.4 and position < len(messages):
            sequence = messages[position]
            position += 1
            assert record.add(sequence) == (sequence not in settled)
        elif step < 0.9:
            waiting = [each for each in messages[:position] if each not in settled]
            if waiting:
                sequence = chance.choice(waiting)
                settled.add(sequence)
                record.settle(sequence)
        else:
            record = handed_over(record)
            position = sum(each <= record.floor for each in messages)
        known = {each for each in messages if record.is_settled(each)}
        assert known == settled
        above = [each for each in messages if each > record.floor]
        assert record.settled_above == sum(each in settled for each in above)
        assert not above or above[0] not in settled or above[0] > record.read  # the floor is as high as it can be


def test_done_messages_take_ranges_and_not_a_number_each():
    record = Record()
    for sequence in range(1, 2001):
        record.add(sequence)
    for sequence in range(2, 2001):
        record.settle(sequence)
    assert len(record.value(ME)) < 300
    assert (record.floor, record.settled_above) == (0, 1999)
    record.settle(1)
    assert (record.floor, record.settled_above) == (2000, 0)


def test_a_range_is_skipped_when_the_oldest_waiting_event_is_looked_for():
    record = Record()
    for sequence in (3, 5, 8, 9):
        record.add(sequence)
    for sequence in (5, 8):
        record.settle(sequence)
    found = handed_over(record)
    assert [found.next_waiting(sequence) for sequence in (3, 5, 8, 9)] == [3, 9, 9, 9]


def test_failures_pauses_and_crashes_are_handed_over_and_end_with_the_event():
    record = Record(failures={4: 2}, pauses={4: 12.5}, crashes={4: 1, 5: 2})
    found = handed_over(record)
    assert (found.failures, found.pauses, found.crashes) == ({4: 2}, {4: 12.5}, {4: 1, 5: 2})
    for sequence in (4, 5):
        found.add(sequence)
        found.settle(sequence)
    assert (found.failures, found.pauses, found.crashes, found.floor) == ({}, {}, {}, 5)


def test_what_a_death_means_depends_on_the_lease():
    leases = {1: Blame.SUSPECT, 2: Blame.TRIAL, 3: Blame.NONE, 4: Blame.TRIAL}
    found = handed_over(Record(leases=leases, crashes={2: 1, 3: 1}))
    assert found.leases == leases
    found.taken()
    assert (found.crashes, found.leases) == ({1: 1, 2: 2, 3: 1, 4: 1}, {})


def test_marks_say_what_is_old():
    record = Record()
    for now, sequence in ((100, 1), (150, 2), (250, 3), (400, 4)):
        record.add(sequence)
        record.settle(sequence)
        record.mark(now, every=100)
    assert record.marks == [(100, 1), (250, 3), (400, 4)]
    record.mark(1000, every=100)
    assert record.marks[-1] == (400, 4)  # nothing has changed
    found = handed_over(record)
    assert [found.old(before) for before in (100, 251, 251, 1000)] == [0, 3, 0, 4]


def test_a_record_of_a_newer_version_is_refused():
    value = Record().value(ME).replace(b'"schema": 1', b'"schema": 2')
    for read in (Record.parse, owner_of):
        with pytest.raises(InvalidRequest, match="update rbim"):
            read(value)


def test_only_time_between_two_proofs_counts():
    watch = Watch(most=5.0)
    assert watch.stood_still("p.0", 3, 90.0) == 0  # before the first proof
    watch.proven(100.0)
    assert watch.stood_still("p.1", 7, 101.0) == 0
    watch.proven(103.0)
    assert watch.stood_still("p.1", 7, 104.0) == 2.0  # from 101 to 103
    assert watch.stood_still("p.1", 6, 104.0) == 0  # of a server that is behind
    watch.proven(200.0)  # this worker was frozen, or the servers were away: no more than ``most`` of it
    assert watch.stood_still("p.1", 7, 200.0) == 7.0  # what is known from before is still known
    assert watch.stood_still("p.0", 3, 200.0) == 8.0
    assert watch.stood_still("p.1", 8, 201.0) == 0  # another revision
    watch.proven(202.0)
    assert watch.stood_still("p.1", 8, 203.0) == 1.0
