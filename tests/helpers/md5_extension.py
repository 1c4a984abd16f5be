"""MD5 taken further from a digest: what anybody can do who knows a sum and how long the text was, without the text."""

import math
import struct

CONSTANTS = [int(abs(math.sin(step + 1)) * 2**32) for step in range(64)]
TURNS = [turn for turns in ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)) for turn in turns * 4]
START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
BLOCK = 64
MASK = 0xFFFFFFFF


def padding(length):
    """Return what MD5 itself appends to a text of so many bytes."""
    return b"\x80" + b"\0" * ((55 - length) % BLOCK) + struct.pack("<Q", length * 8)


def compress(state, block):
    """Mix one block into the state (RFC 1321)."""
    words = struct.unpack("<16I", block)
    a, b, c, d = state
    for step in range(64):
        if step < 16:
            mixed, word = (b & c) | (~b & d), step
        elif step < 32:
            mixed, word = (d & b) | (~d & c), (5 * step + 1) % 16
        elif step < 48:
            mixed, word = b ^ c ^ d, (3 * step + 5) % 16
        else:
            mixed, word = c ^ (b | ~d), (7 * step) % 16
        turned = (a + mixed + CONSTANTS[step] + words[word]) & MASK
        a, d, c = d, c, b
        b = (b + (turned << TURNS[step] | turned >> (32 - TURNS[step]))) & MASK
    return tuple((old + new) & MASK for old, new in zip(state, (a, b, c, d), strict=True))


def digest_from(state, text, before=0):
    """Return the hex digest of a text that follows ``before`` bytes (whole blocks) that led to this state."""
    padded = text + padding(before + len(text))
    for start in range(0, len(padded), BLOCK):
        state = compress(state, padded[start : start + BLOCK])
    return struct.pack("<4I", *state).hex()


def extended(digest, length, suffix):
    """Return what to append to a text of ``length`` bytes with this hex digest, and the digest of the longer text."""
    glue = padding(length)
    state = struct.unpack("<4I", bytes.fromhex(digest))
    return glue + suffix, digest_from(state, suffix, length + len(glue))
