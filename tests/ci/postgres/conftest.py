"""One server for the tests of this folder that do not end it."""

import pytest

from helpers.postgres import server


@pytest.fixture(scope="module")
def own_server():
    with server() as made:
        yield made
