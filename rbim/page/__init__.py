"""Local pages in a browser: of the emulator, and of the files of jobs and inboxes.

A page needs no build step, loads nothing from elsewhere, and costs nothing while no one watches.

- ``static/NAME/`` has the files of one page: ``index.html`` (a skeleton without scripts or styles in it), ``main.js`` (an ES
  module), a module for each tab, and ``words.js`` (all of its words, in English and Chinese). ``static/parts/`` has the
  modules and the stylesheet that pages share; the first lines of each say how it is used.
- :mod:`rbim.page.assets` serves these files.
- :mod:`rbim.page.server` serves the page of a file on the loopback, behind a guard and a token. The browser asks for the
  state again and again: :mod:`rbim.page.journal` answers for a job, :mod:`rbim.page.inbox` for an inbox. The emulator serves
  its page itself, which asks in the same way.
"""
