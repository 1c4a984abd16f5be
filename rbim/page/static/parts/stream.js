// Receives a feed (rbim/page/events.py) by server-sent events.
//
//   watch({
//       url: "events",
//       onLevels: levels => {},
//       streams: {requests: {onItems: (items, {start, first, missed, count}) => {}, onStart: () => {}}},
//       onState: state => {},   // "open", "lost", "paused"
//   });
//
// A page in a hidden tab disconnects: a browser allows six connections to one server. It resumes where it was.

const AGAIN = 1000; // milliseconds

export function watch({url, onLevels = () => {}, streams = {}, onState = () => {}}) {
    let source = null;
    let last = "";
    let timer = 0;

    function connect() {
        clearTimeout(timer);
        source?.close();
        source = new EventSource(last === "" ? url : `${url}?after=${encodeURIComponent(last)}`);
        source.onopen = () => onState("open");
        source.onmessage = receive;
        source.onerror = () => {
            // the browser gives up after some answers: this page does not
            source.close();
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
        onState("paused");
    }

    document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
    addEventListener("pagehide", disconnect);
    addEventListener("pageshow", event => event.persisted && connect());
    connect();
}
