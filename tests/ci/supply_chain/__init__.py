"""Supply chain: what rbim is built from and runs with, each question a task that anyone can repeat.

``python -m tests.ci.supply_chain NAME`` answers one of them: do the lowest versions work that pyproject.toml allows, and the
newest; are two builds the same bytes; what is installed, under which licences; does the source distribution have all that
its tests need; does an archive run. Packages come from where pip is configured to take them. Needs the extra ``ci``.
"""
