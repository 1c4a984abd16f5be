"""Faults put into rbim on purpose."""

PLANTED = {}


def plant(name: str) -> None:
    PLANTED[name]()
