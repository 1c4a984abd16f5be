"""``python -m tests.ci.supply_chain reproducible``: the command line of the questions about the supply chain."""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ci.helpers_ci.proof import about, write_document

from .builds import archive, reproducible, source_distribution
from .dependencies import development_mode, lowest, newest
from .environments import Failed
from .inventory import bill_of_materials, licences

QUESTIONS = {
    "reproducible": reproducible,
    "sdist": source_distribution,
    "zipapp": archive,
    "licences": licences,
    "sbom": bill_of_materials,
    "lowest": lowest,
    "newest": newest,
    "devmode": development_mode,
}


def main(arguments=None):
    """Answer what the command line asks; return 1 if an answer is no."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.ci.supply_chain", description="Questions about what rbim is made of."
    )
    parser.add_argument("question", nargs="+", choices=list(QUESTIONS))
    parser.add_argument("--out", type=Path, help="of sbom: the folder for the documents")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the answers to this file, beside those in it")
    told = parser.parse_args(arguments)
    code = 0
    with TemporaryDirectory(prefix="rbim-supply-chain-") as folder:
        for name in told.question:
            ask = partial(bill_of_materials, out=told.out) if name == "sbom" else QUESTIONS[name]
            place = Path(folder, name)
            place.mkdir()
            try:
                answer = ask(place)
            except Failed as failed:
                _say(f"{name}: no: {failed}")
                code = 1
                continue
            _say(f"{name}: yes: {json.dumps(answer, ensure_ascii=False)}")
            if told.record is not None:
                _record(told.record, name, answer)
    return code


def _say(text):
    print(text, flush=True)  # noqa: T201  # a command


def _record(path, name, answer):
    """Write an answer, with what it is about, into a file with those of other questions."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    run_of = about()
    document[name] = {"commit": run_of["commit"], "date": run_of["date"], "python": run_of["versions"]["Python"], **answer}
    write_document(path, {each: document[each] for each in QUESTIONS if each in document})


if __name__ == "__main__":
    sys.exit(main())
