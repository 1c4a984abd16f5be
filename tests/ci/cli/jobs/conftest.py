"""Fixtures of the tests of the commands for jobs."""

from helpers.job_fixtures import cli, environment, group, platform, served_platform

__all__ = ["cli", "environment", "group", "platform", "served_platform"]
