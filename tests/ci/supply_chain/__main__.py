"""``python -m tests.ci.supply_chain reproducible``: the command line of the questions about the supply chain."""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ci.helpers_ci.proof import about, write_document

from .builds import reproducible, source_distribution
from .dependencies import lowest
from .environments import Failed
from .inventory import licences

QUESTIONS = {"reproducible": reproducible, "sdist": source_distribution, "licences": licences, "lowest": lowest}


def main(arguments=None):
    """Answer what the command line asks; return 1 if an answer is no."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.ci.supply_chain", description="Questions about what rbim is made of."
    )
    parser.add_argument("question", nargs="+", choices=list(QUESTIONS))
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the answers to this file, beside those in it")
    told = parser.parse_args(arguments)
    code = 0
    with TemporaryDirectory(prefix="rbim-supply-chain-") as folder:
        for name in told.question:
            place = Path(folder, name)
            place.mkdir()
            try:
                answer = QUESTIONS[name](place)
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
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    run_of = about()
    document[name] = {"commit": run_of["commit"], "date": run_of["date"], "python": run_of["versions"]["Python"], **answer}
    write_document(path, {each: document[each] for each in QUESTIONS if each in document})


if __name__ == "__main__":
    sys.exit(main())
