"""Mutation testing: small changes of rbim's code, one at a time, and whether a test fails with each.

:mod:`.mutation` finds the changes with cosmic-ray's operators and those of :mod:`.operators`, and selects a sample that
does not depend on other code. :mod:`.areas` says which modules and which tests belong together. :mod:`.session` notes
which test of an area runs which lines, and forks a process for each change, which imports rbim with it. No
file of rbim is written, so the working tree cannot stay changed. :mod:`.record` keeps the results and the reasons of the
survivors.
"""
