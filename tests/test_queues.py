"""Laws of the queue with keys, against a model that is too simple to be wrong."""

from collections import defaultdict
from itertools import count
from time import process_time

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rbim.queues import KeyedQueue

KEYS = st.sampled_from("abcd")


class Machine(RuleBasedStateMachine):
    """Any order of operations: order within a key, nothing lost or twice, nothing of a key that is leased or pauses."""

    def __init__(self):
        super().__init__()
        self.queue = KeyedQueue()
        self.items = defaultdict(list)
        self.paused = {}
        self.leased = set()
        self.now = 0.0
        self.numbers = count()
        self.passed_over = defaultdict(int)

    def ready(self):
        return {
            key
            for key, items in self.items.items()
            if items and key not in self.leased and self.paused.get(key, self.now) <= self.now
        }

    @rule(key=KEYS, first=st.booleans())
    def put(self, key, first):
        item = next(self.numbers)
        self.queue.put(key, item, first=first)
        self.items[key].insert(0 if first else len(self.items[key]), item)

    @rule()
    def lease(self):
        ready = self.ready()
        found = self.queue.lease(self.now)
        if found is None:
            assert not ready
            return
        key, item = found
        assert key in ready
        assert item == self.items[key].pop(0)
        self.leased.add(key)
        self.passed_over.pop(key, None)
        for other in ready - {key}:
            self.passed_over[other] += 1
            assert self.passed_over[other] < 4  # no key starves: each other key goes before it once at most

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def take(self, data):
        key = data.draw(st.sampled_from(sorted(self.leased)))
        items = self.items[key]
        assert self.queue.take(key) == (items.pop(0) if items else None)

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.leased)))
        self.queue.release(key)
        self.leased.remove(key)

    @rule(key=KEYS, seconds=st.integers(0, 5))
    def pause(self, key, seconds):
        self.queue.pause(key, self.now + seconds)
        self.paused[key] = self.now + seconds
        self.passed_over.pop(key, None)

    @rule(key=KEYS)
    def drop(self, key):
        assert self.queue.drop(key) == self.items.pop(key, [])
        self.passed_over.pop(key, None)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def it_counts_its_items(self):
        assert len(self.queue) == sum(map(len, self.items.values()))
        assert {key for key in "abcd" if key in self.queue} == {key for key, items in self.items.items() if items}

    @invariant()
    def it_says_when_something_can_be_leased(self):
        at = self.queue.next_at(self.now)
        if self.ready():
            assert at == self.now
            return
        later = [
            self.paused[key]
            for key, items in self.items.items()
            if items and key not in self.leased and self.paused.get(key, self.now) > self.now
        ]
        assert at is None if not later and at is None else at is not None
        assert at is None or self.now < at <= min(later, default=at)

    def teardown(self):
        """All that was put and not given out comes out, when no lease and no pause holds it back; nothing else is kept."""
        for key in self.leased:
            self.queue.release(key)
        self.now = max(self.paused.values(), default=0.0) + self.now
        while (found := self.queue.lease(self.now)) is not None:
            key, item = found
            assert item == self.items[key].pop(0)
            self.queue.release(key)
        assert not any(self.items.values())
        assert not self.queue._keys


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(KEYS, st.integers()), max_size=60))
def test_keys_take_turns(items):
    queue = KeyedQueue()
    for key, item in items:
        queue.put(key, item)
    order = []
    while (found := queue.lease(0.0)) is not None:
        order.append(found[0])
        queue.release(found[0])
    left = defaultdict(int)
    for key, _ in items:
        left[key] += 1
    keys = list(dict.fromkeys(key for key, _ in items))
    expected = []
    while keys:
        expected += keys
        for key in keys:
            left[key] -= 1
        keys = [key for key in keys if left[key]]
    assert order == expected


def test_what_is_not_leased_cannot_be_taken_or_released():
    queue = KeyedQueue()
    queue.put("a", 1)
    for call in (queue.take, queue.release):
        with pytest.raises(LookupError, match="not leased"):
            call("a")


def seconds_of_work(keys, items):
    """Put so many items under so many keys, and do everything with all of them."""
    queue = KeyedQueue()
    began = process_time()
    for number in range(items):
        queue.put(number % keys, number)
    for number in range(items):
        queue.pause(number % keys, number % 97)
    for now in range(items):
        queue.next_at(now)
        if (found := queue.lease(now)) is None:
            continue
        key, item = found
        queue.put(key, item, first=True)
        queue.pause(key, now + 1.5)
        queue.release(key)
    for now in range(items, 2 * items):
        if (found := queue.lease(now)) is not None:
            queue.release(found[0])
    for key in range(keys):
        queue.drop(key)
    assert not queue
    return process_time() - began


@pytest.mark.parametrize("keys", ["one key", "as many keys"])
def test_the_work_for_each_item_does_not_grow_with_their_number(keys):
    """Ten times as many take some twelve times as long; with work that grows, it would be a hundred times."""
    several, many = 10_000, 100_000
    few = min(seconds_of_work(1 if keys == "one key" else several, several) for _ in range(3))
    assert seconds_of_work(1 if keys == "one key" else many, many) < 40 * few
