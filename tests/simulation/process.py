"""A simulated process: whatever runs in a context that carries it. A process that was killed never takes another step."""

import contextvars

current_process = contextvars.ContextVar("current_process", default=None)


class Killed(BaseException):
    """The process ends within a statement: raised so that nothing more of its code is reached."""


class Process:
    """One process. It runs what :meth:`spawn` starts, and all that this starts, until it is killed.

    ``dies_at_step`` and ``dies_at_statement`` are the step of its tasks and the SQL statement at which it is killed;
    :meth:`kill` does it at once. ``on_death`` is called once, in no process, after its files were closed.
    """

    def __init__(self, name, loop, on_death=None):
        self.name = name
        self.loop = loop
        self.alive = True
        self.death = ""
        self.frozen_until = 0.0
        """The time until which none of its code runs, as on a virtual machine that is paused; its files stay open."""
        self.dies_at_step = self.dies_at_statement = 0
        self.steps = self.statements = 0
        self.connections = []
        self.locks = []
        """The locks of jobs that it holds."""
        self._on_death = on_death
        self._tasks = []
        self._prune_at = 1000

    def spawn(self, coroutine):
        """Start a task in the process."""
        context = contextvars.Context()
        context.run(current_process.set, self)
        return self.loop.create_task(coroutine, context=context)

    def keep(self, task):
        """Refer to a task: if it were collected after the process died, its `finally` blocks would run."""
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at and self.alive:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._prune_at = 1000 + 2 * len(self._tasks)

    def may_step(self):
        """Count a step, and tell whether the process lives to take it."""
        if not self.alive:
            return False
        self.steps += 1
        if self.steps == self.dies_at_step:
            self.kill(f"at step {self.steps}")
        return self.alive

    def kill(self, how):
        """End the process. Its open files, with their locks, are given back as the system does."""
        if self.alive:
            self.alive, self.death = False, how
            self.loop.call_soon(self._bury, context=contextvars.Context())  # of nobody, or it would die with the process

    def _bury(self):
        for connection in self.connections:
            connection.abandon()
        self.connections.clear()
        for lock in tuple(self.locks):
            lock.release()
        if self._on_death is not None:
            self._on_death(self)
