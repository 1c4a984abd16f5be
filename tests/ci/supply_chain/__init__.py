"""Supply chain: what rbim is built from and runs with, each question a task that anyone can repeat.

``python -m tests.ci.supply_chain NAME`` answers one of them: do the lowest versions work that pyproject.toml allows; are two
builds the same bytes; under which licences is what is installed; does the source distribution have all that its tests need.
Packages come from where pip is configured to take them. Needs the extra ``ci``.
"""
