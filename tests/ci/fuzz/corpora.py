"""The inputs that are kept, as text: one per line, as a Python literal of bytes.

``corpus/TARGET.txt`` is written by ``keep``: a small set of inputs that reaches what longer runs have reached.
``findings/TARGET.txt`` is written by hand: each input that once broke a promise, below a comment that says which.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def kept(name):
    return _read(HERE / "corpus" / f"{name}.txt")


def findings(name):
    return _read(HERE / "findings" / f"{name}.txt")


def write_kept(name, inputs):
    """Replace the small corpus of a target; return the size of its file."""
    path = HERE / "corpus" / f"{name}.txt"
    path.parent.mkdir(exist_ok=True)
    return path.write_text(
        "".join(f"{each!r}\n" for each in sorted(inputs, key=lambda each: (len(each), each))), encoding="ascii"
    )


def _read(path):
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").splitlines()
    return [ast.literal_eval(line) for line in lines if line and not line.startswith("#")]
