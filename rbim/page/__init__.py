"""Local pages in a browser: of the emulator, a running job, and the callback server.

A page shows what a process does, while it does it, to the person in front of this machine. It needs no build step, loads
nothing from elsewhere, and costs nothing while no one watches.

**A page is made of four things.**

1. Its files, in ``rbim/page/static/NAME/``: ``index.html`` (a skeleton without scripts or styles in it), ``main.js`` (an ES
   module that connects the feed with the views), a module for each tab, and ``words.js`` (all of its words, in English and
   Chinese). They use the modules and the stylesheet of ``rbim/page/static/parts/``, by relative addresses:
   ``static/parts/page.css`` in ``index.html``, ``../parts/dom.js`` in a module. ``index.html`` itself is served at the
   page's prefix. It names all modules of the page, so that a browser asks for them at once.
2. A :class:`~rbim.page.events.Feed`: what is pushed to those who watch. ``feed.stream(name, kept, encode)`` returns a
   :class:`~rbim.page.events.Stream`; ``stream.add(item)`` appends one item, for the price of a deque's append. ``encode``
   turns an item into JSON, only while someone watches. ``levels`` is a function that returns the present values (counters,
   rates, states) as JSON. It is called once per tick, only while someone watches, and sent if it changed.
3. A :class:`~rbim.page.assets.Page`: the ASGI 3 application that serves both below a prefix.
4. The guard of local servers (:mod:`rbim._support.local_server`) in front of it. The page does not have it by itself,
   because a server has one guard for everything that it serves.

.. code-block:: python

    feed = Feed(levels=lambda: {"sent": job.sent, "waiting": job.waiting})
    calls = feed.stream("calls", kept=500, encode=lambda call: {"at": call.at, "code": call.code})
    page = Page("job", feed)  # serves /, /static/... and /events

    async def app(scope, receive, send):  # behind the guard
        await page(scope, receive, send)

    calls.add(call)  # as often as you like, from the event loop's thread
    feed.close()  # before the server ends: the watchers' answers end, too

**In the browser.** ``parts/stream.js`` receives the feed::

    watch({
        url: "events",
        onLevels: levels => {},
        streams: {calls: {onItems: (items, {first, missed}) => {}, onStart: () => {}}},
        onState: state => {},  // "open", "lost", "paused"
    });

``items`` are in order and numbered from ``first`` without a gap; ``missed`` counts those before ``first`` that are not held
any more. ``onStart`` means that everything before in this stream is void: the process or the stream began anew. The other
streams of the feed go on. A page in a hidden tab disconnects, and resumes where it was.

The other modules each hold one thing: ``dom.js`` (elements, text only; hostile characters are made visible), ``words.js``
(language, words, numbers, times), ``request.js`` (JSON to and from the server), ``tabs.js``, ``dialog.js``, ``list.js`` (a
live table with filter and pause), ``table.js`` (the skeleton of all tables, and a table that is replaced as a whole),
``paged.js`` (a list that is read part by part), ``facts.js`` (names with values), ``chart.js``, ``copy.js``,
``download.js``, ``notice.js`` (what just happened, for screen readers, too), ``form.js`` (fields with labels),
``access.js`` (the token of a page), ``command.js`` (the page of a command that runs: top bar, token, feed and end). Their
first lines say how they are used.
"""
