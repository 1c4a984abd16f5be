"""The texts that the objects of this process hold: a planted secret is looked for among them."""

import gc
from collections import deque
from types import FrameType, ModuleType

CHUNK = 4096


def _hidden(text, needles, asterisks):
    for needle in needles:
        text = text.replace(needle, asterisks)
    return text


def texts_with(*reversed_needles, without=()):
    """Return the texts and bytes, reachable from any object, that contain one of the needles, here replaced by asterisks.

    The needles are spelled backwards, so that the search does not find those of its caller. Objects of the classes
    ``without`` are not looked into.
    """
    gc.unfreeze()  # what pytest collected counts, too
    gc.collect()
    needles = [needle[::-1] for needle in reversed_needles]
    wanted = [(needle, needle.encode()) for needle in needles]
    waiting, seen, found = deque(gc.get_objects()), set(), []
    own = {id(waiting), id(seen), id(found), id(needles), id(wanted), *map(id, wanted), *map(id, needles)}
    own |= {id(one) for pair in wanted for one in pair}
    while waiting:
        batch = []
        while waiting and len(batch) < CHUNK:
            each = waiting.popleft()
            kind = type(each)  # isinstance would run code of objects that stand for others
            if id(each) in seen or id(each) in own or issubclass(kind, (FrameType, *without)):
                continue
            seen.add(id(each))
            if issubclass(kind, str):
                if any(text in each for text, _ in wanted):
                    found.append(_hidden(each, [text for text, _ in wanted], "***"))
            elif issubclass(kind, (bytes, bytearray)):
                if any(raw in each for _, raw in wanted):
                    found.append(_hidden(bytes(each), [raw for _, raw in wanted], b"***"))
            elif not issubclass(kind, (int, float, ModuleType)):
                batch.append(each)
        for each in batch:
            waiting.extend(gc.get_referents(each))
    return found
