"""Fixtures of the tests of commands; some files have others of these names."""

from helpers.job_fixtures import cli, environment, group, platform, served_platform

__all__ = ["cli", "environment", "group", "platform", "served_platform"]
