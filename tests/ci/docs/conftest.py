"""Fixtures of the tests of the documentation."""

import pytest

from helpers.serving import platform_of_a_reader


@pytest.fixture(scope="module")
def platform():
    with platform_of_a_reader() as variables:
        yield variables
