"""The exception of an oracle."""


class Broken(AssertionError):
    """A broken promise. ``rule`` names the promise: findings with one rule count as one."""

    def __init__(self, rule, *facts):
        super().__init__(rule, *facts)
        self.rule = rule

    def __str__(self):
        return "\n  ".join([self.rule, *(fact if isinstance(fact, str) else repr(fact) for fact in self.args[1:])])


def require(holds, rule, *facts):
    if not holds:
        raise Broken(rule, *facts)
