"""What scenarios have in common, and the scenarios by name.

To add one, write a subclass of :class:`Scenario` in a module of its own and name it in :data:`MODULES`.
"""

import math
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import attrs

from rbim import Credentials

from .disk import real_connect

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")

MODULES = {
    "job": "JobScenario",
    "inbox": "InboxScenario",
    "service": "ServiceScenario",
    "trio_inbox": "TrioInboxScenario",
}
"""The class of each scenario; its module has the scenario's name."""


class Scenario:
    """A system, its troubles and its invariants, in the ``world`` of one seed.

    ``TROUBLES`` are the kinds of trouble that may happen; minimising switches them off in this order. ``SIZES`` is an attrs
    class whose fields are the numbers and choices of a run: :meth:`draw` makes one from the streams of the world, and
    ``settings`` replaces fields by name. ``SHRINKS`` maps those fields that minimising may reduce to their least values.
    """

    path = None
    _auditor = None
    TROUBLES = ()
    SHRINKS = MappingProxyType({})

    def __init__(self, world, settings):
        self.world = world
        self.sizes = attrs.evolve(self.draw(), **settings)
        world.note("scenario", str(self.sizes))

    def draw(self):
        """Draw the sizes of a run."""
        raise NotImplementedError

    async def main(self):
        """Run the scenario and check its invariants."""
        raise NotImplementedError

    def auditor(self):
        """Return a connection of nobody's, which reads what the file at ``path`` says."""
        if self._auditor is None:
            self._auditor = real_connect(self.path, isolation_level=None)
        return self._auditor

    def close_auditor(self):
        """Close it, so that the file may be deleted or lose what was not synced."""
        if self._auditor is not None:
            self._auditor.close()
            self._auditor = None

    def delete_file(self, what):
        """Delete the file at ``path`` while it is used."""
        self.close_auditor()
        for end in ("", "-wal", "-shm"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)
        self.world.note("operator", f"deletes the {what}")

    def plan_death(self, process, how, *, step, statement, moment):
        """Let a process be killed at a step of its tasks, at an SQL statement or at a moment, by a number below 1."""
        if not self.world.is_on("kill"):
            pass
        elif how < 0.4:
            process.dies_at_step = int(math.exp(step))
        elif how < 0.8:
            process.dies_at_statement = int(math.exp(statement))
        else:
            self.world.at(moment, process.kill, "by the clock")

    @property
    def served(self):
        """Requests or deliveries so far, for measuring."""
        return 0


def scenario(name):
    """Return the class of a scenario."""
    return getattr(import_module(f".{name}", __package__), MODULES[name])
