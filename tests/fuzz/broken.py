"""The exception of an oracle."""

from __future__ import annotations

__all__ = ["Broken", "require"]


class Broken(AssertionError):
    """A broken promise. ``rule`` names the promise: findings with one rule count as one."""

    def __init__(self, rule: str, *facts: object) -> None:
        super().__init__(rule, *facts)
        self.rule = rule

    def __str__(self) -> str:
        return "\n  ".join([self.rule, *(fact if isinstance(fact, str) else repr(fact) for fact in self.args[1:])])


def require(holds: object, rule: str, *facts: object) -> None:
    """Raise Broken unless the rule holds."""
    if not holds:
        raise Broken(rule, *facts)
