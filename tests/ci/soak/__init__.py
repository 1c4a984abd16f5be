"""Soak: clients, jobs and a receiver run for minutes under faults, and nothing of theirs may grow.

``python -m tests.ci.soak`` runs the three parts side by side, 15 minutes each, and prints figures and a verdict. Each part
is a process with the emulator as its other end, so that the emulator may not grow either. It takes a sample of itself every
few seconds: memory, open files and connections, threads, asyncio tasks, the sizes of its files. That nothing is lost is
proved elsewhere: by the simulation, the tests of crashes and the real proxies. Linux only.
"""
