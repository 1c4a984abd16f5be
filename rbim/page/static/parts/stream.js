// Receives a feed (rbim/page/events.py) by server-sent events.
//
//   watch({
//       url: "events",
//       onLevels: levels => {},
//       streams: {requests: {onItems: (items, {start, first, missed, count}) => {}, onStart: () => {}}},
//       onState: state => {},   // "open", "lost", "paused"
//       source: authorizedSource,   // of access.js, for a page behind a token; otherwise EventSource
//       stays: true,                // also in a hidden tab: for a page that must not miss the end
//   });
//
// The result is a function that ends it for good.
//
// A page in a hidden tab disconnects: a browser allows six connections to one server. It resumes where it was.

const AGAIN = 1000; // milliseconds

export function watch({
    url,
    onLevels = () => {},
    streams = {},
    onState = () => {},
    source: opened = address => new EventSource(address),
    stays = false,
}) {
    let ended = false;
    let source = null;
    let last = "";
    let timer = 0;

    function connect() {
        clearTimeout(timer);
        source?.close();
        if (ended) return;
        source = opened(last === "" ? url : `${url}?after=${encodeURIComponent(last)}`);
        source.onopen = () => onState("open");
        source.onmessage = receive;
        source.onerror = () => {
            // the browser gives up after some answers: this page does not
            source.close();
            if (ended) return;
            onState("lost");
            timer = setTimeout(connect, AGAIN);
        };
    }

    function receive(event) {
        const message = JSON.parse(event.data);
        last = event.lastEventId;
        for (const [name, part] of Object.entries(message.streams)) {
            if (part.start) streams[name]?.onStart?.();
            streams[name]?.onItems(part.items, part);
        }
        if ("levels" in message) onLevels(message.levels);
    }

    function disconnect() {
        clearTimeout(timer);
        source?.close();
        source = null;
        if (!ended) onState("paused");
    }

    if (!stays) document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
    addEventListener("pagehide", disconnect);
    addEventListener("pageshow", event => event.persisted && connect());
    connect();
    return () => {
        ended = true;
        disconnect();
    };
}
