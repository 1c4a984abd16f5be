"""The licences of what is installed with rbim, which must be of a list."""

import json
import re
import sys

from .environments import ROOT, Environment, Failed, direct, run

EXTRAS = {"core": "", "all": "[all]"}
ALLOWED = (
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU"),
    *("MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"),
    "LGPL-3.0-only",  # psycopg, which the extra `postgres` installs and imports
)
"""Licences by their identifiers of SPDX: they let a closed program use the package unchanged."""

SPELLINGS = {
    "apache license 2.0": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "isc license": "ISC",
    "mit license": "MIT",
    "the mit license (mit)": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "mozilla public license 2.0": "MPL-2.0",
    "psf license": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "the unlicense (unlicense)": "Unlicense",
    "zlib/libpng license": "Zlib",
}
"""Names of licences that are no identifiers, in lower case, as packages spell them."""


def not_allowed(text):
    """Return the parts of a licence that are not in the list: all must be, or one of those that ``OR`` offers."""
    choices = [re.split(r"\s+AND\s+|;\s*", choice) for choice in re.split(r"\s+OR\s+", text)]
    return min(([part for part in map(_identifier, parts) if part not in ALLOWED] for parts in choices), key=len)


def _identifier(part):
    name = part.strip()
    known = SPELLINGS.get(name.lower())
    if known is None and name.startswith("("):  # of "MIT AND (Apache-2.0 OR MIT)", a part has the opening bracket alone
        return name.strip("() ")
    return known or (name.removesuffix(")") if "(" not in name else name)


def _licence(package):
    """Return the licence of a package by its metadata, or else by the first line of its file."""
    text = package["License"]
    if text != "UNKNOWN":
        return text
    lines = [line.strip() for line in package["LicenseText"].splitlines() if line.strip()]
    return lines[0] if lines else text


def licences(folder):
    found = {}
    for name, extra in EXTRAS.items():
        environment = Environment(folder / name)
        environment.install(f"{ROOT}{extra}")
        command = [sys.executable, "-m", "piplicenses", "--python", environment.python, "--format=json", "--from=mixed"]
        command += ["--with-license-file", "--no-license-path"]
        listed = json.loads(run(command))
        found[name] = {each["Name"]: _licence(each) for each in listed if each["Name"] not in {"rbim", "pip", "uv"}}
        if not found[name].keys() >= {each.lower() for each in direct(extras=name == "all")}:
            raise Failed(f"{name}: the list lacks {', '.join(sorted(direct(extras=name == 'all') - found[name].keys()))}")
    wrong = {name: text for listed in found.values() for name, text in listed.items() if not_allowed(text)}
    if wrong:
        raise Failed(f"licences that are not in the list: {wrong}")
    counted = {}
    for text in found["all"].values():
        counted[text] = counted.get(text, 0) + 1
    return {"packages": {name: len(listed) for name, listed in found.items()}, "licences": dict(sorted(counted.items()))}
