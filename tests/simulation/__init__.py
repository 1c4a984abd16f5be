"""Deterministic simulation: processes, threads, disk, network and time of a whole system, all decided by one seed.

``python -m tests.simulation job --seed 7`` in the root of the repository; the page on simulation says how to read what it
prints. rbim runs as it is in production (SystemClock, threads, shared deadlines); everything below it is simulated:

===================  ==================================================================================
``virtual_time``     the time of the machine: it stands still, and jumps while no task can run
``event_loop``       asyncio on that time; the order of the steps of tasks is drawn
``process``          a process that can be killed at a step, an SQL statement or a moment
``disk``             SQLite and threads: delays, stalls, errors, loss of power
``network``          what happens to a request and to its answer between a client and the platform
``world``            one run: its random streams, its log, the invariants that were broken
``scenarios``        the scenarios by name, and what they have in common
``job``              one scenario, with ``job_checks``: its invariants
``inbox``            another one, with ``inbox_checks``, and ``deliveries`` between platform and receivers
``service``          a third one, with ``service_checks``
``trio_inbox``       a receiver with its handlers on trio
``runner``           seeds in processes of their own, in turn; minimising
``record``           what was run, in docs/internals/proof/simulation.json
``planted_faults``   faults put into rbim on purpose, to see whether a scenario finds them
===================  ==================================================================================

Nothing is imported here, because time is replaced before rbim is imported: see ``__main__``.
"""
