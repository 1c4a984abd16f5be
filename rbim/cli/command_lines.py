"""Commands of rbim as texts that a shell understands."""

from __future__ import annotations

import os
import shlex
import subprocess

from rbim.cli.global_flags import END, current_flags

__all__ = ["command_line", "quoted_words", "same_with"]


def command_line(*words: object) -> str:
    """Return a command of rbim, quoted for a shell."""
    return quoted_words("rbim", *map(str, words))


def same_with(flag: str) -> str:
    """Return the running command with one more flag."""
    words = current_flags().words
    end = words.index(END) if END in words else len(words)
    return command_line(*words[:end], flag, *words[end:])


def quoted_words(*words: str) -> str:
    """Return words quoted for a shell."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
