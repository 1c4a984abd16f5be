"""What README.md and the pages under docs show is what runs, and what is derived from the code is what the code says."""

import json
import os
import re
from zoneinfo import ZoneInfo

import pytest

from helpers.commands import leaves
from helpers.pages import blocks_of, docs_module, run_program
from helpers.paths import ROOT, TESTS
from helpers.serving import platform_of_a_reader
from helpers.tables import each_row
from rbim import (
    CODES,
    AsyncClient,
    Code,
    CreateGroup,
    Dialect,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    MembersShape,
    NotSent,
    QueryGroupDetail,
    Throttled,
    Unanswered,
    errors,
)
from rbim.bulk import InviteJob
from rbim.callbacks import SqliteInbox
from rbim.cli.exit_codes import Exit, JobExit
from rbim.cli.global_flags import FLAGS, SWITCHES
from rbim.client.retry import Retry, RetryBudget
from rbim.emulator import Emulator, Rules
from rbim.errors import ApiError

EXPECTED = {
    "README.md": {
        "A first call": [r"3\n"],
        "A job": [r"1900 0 0\n"],
        "A receiver": [r""],
    },
    "docs/client.md": {
        "The client": [r"(g8\d+ 客户交流\n)*"],
        "Fan-out": [r"(客户交流 \d+\n)*"],
        "Many accounts": [r"900 invited, 0 unknown\n0 to be invited again\n"],
        "Synchronous code": [r"200\n201\n"],
        "Many clients in one process": [r""],
        "Credentials that change": [r""],
        "Answers as JSON": [r'{"invited": \["1001"\], "unknown": \[\], "fails": \[\], "extra": {"note": null}}\n'],
        "Custom operations": [r"900501 .*QueryGroupMembers.*\n"],
    },
    "docs/index.md": {"rbim": [r"3\n"]},
    "docs/quickstart.md": {
        "Quickstart": [r"g8\d+ \[\]\n客户交流 3\n"],
        "Handling errors": [r"the platform said no: 900404 there is no group g1\n"],
    },
    "docs/errors.md": {
        "Handling errors": [r"not sent: .*50 characters.*\n"],
        "When the outcome is unknown": [r"g8\d+\n1 group\n"],
    },
    "docs/SECURITY.md": {
        "No secrets in errors and logs": [r"Credentials\(app_id='\w+', app_token=Secret\(\*\*\*\)\) False\n"],
        "Signatures": [r"AuthenticationError\n"],
    },
    "docs/dialect.md": {"How to change it": [r"Throttled 5\n"]},
    "docs/internals/contributing.md": {
        "Adding an operation": [r"\[\('admin', <Role.CREATOR: '0'>\), \('1001', <Role.MEMBER: '2'>\)\]\n"],
        "Adding a quirk": [r"1:05:00 '1h5m'\n0:45:00 '45m'\nNone 'until tomorrow'\nNone ''\n"],
    },
}
"""What each program of a page prints, by the heading it stands under."""

ELSEWHERE = {
    "README.md": ("ci/docs/test_readme.py", {"sh"}),
    "docs/bulk.md": ("ci/docs/test_bulk.py", {"python", "sql"}),
    "docs/callbacks.md": ("ci/docs/test_callbacks.py", {"python"}),
    "docs/cli.md": ("ci/docs/test_cli.py", {"sh", "toml", "json"}),
    "docs/configuration.md": ("docs/test_configuration.py", {"python", "sh", "toml"}),
    "docs/cookbook.md": ("ci/docs/test_cookbook.py", {"python", "sh"}),
    "docs/emulator.md": ("cli/test_emulator.py", {"python", "sh", "json"}),
    "docs/machines.md": ("ci/docs/test_reloads.py", {"python", "sh", "nginx"}),
    "docs/migration.md": ("ci/docs/test_migration.py", {"python"}),
    "docs/observability.md": ("ci/docs/test_observability.py", {"python"}),
    "docs/operations.md": ("docs/test_docs.py", {"python", "json"}),
    "docs/quickstart.md": ("ci/docs/test_readme.py", {"sh"}),
