"""A disk that is slower: a library that lets each sync of a process take longer, loaded before all others.

It is compiled when it is needed, and so needs Linux and a compiler of C.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["missing", "slow_disk"]

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int slower(const char *name, int file)
{
    int (*sync)(int) = (int (*)(int)) dlsym(RTLD_NEXT, name);
    const char *delay = getenv("SYNC_DELAY_US");
    usleep(delay ? atoi(delay) : 0);
    return sync(file);
}

int fsync(int file) { return slower("fsync", file); }
int fdatasync(int file) { return slower("fdatasync", file); }
"""


def missing() -> str:
    """Return the reason why no disk can be made slower here, or an empty text."""
    if sys.platform != "linux":
        return "the slower disk: only on Linux"
    return "" if shutil.which("cc") else "the slower disk: no compiler of C (cc)"


def slow_disk(folder: Path, seconds: float) -> dict[str, str]:
    """Return the environment of a process of which each sync takes ``seconds`` longer. Raises CalledProcessError."""
    library, source = folder / "slow_disk.so", folder / "slow_disk.c"
    source.write_text(SOURCE, encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return {"LD_PRELOAD": str(library), "SYNC_DELAY_US": str(round(seconds * 1e6))}
