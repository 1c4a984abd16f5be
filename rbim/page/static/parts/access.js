// The token of a page that only its holder may use.
//
// It stands behind the # of the address, which a browser sends to no server. takeToken() keeps it for this tab and cleans
// the address; from then on every request of the page has it: those of request.js by authorization(), and a feed that is
// received by authorizedSource instead of EventSource, which can send no headers.
//
//   if (takeToken() === "") ...                            // opened without it: nothing can be asked
//   watch({url: "events", source: authorizedSource, ...})

const KEY = "rbim token";

let token = "";

/** Return the token of the address, or the one that this tab had before it was loaded again; "" without one. */
export function takeToken() {
    if (!keepGiven()) token = sessionStorage.getItem(KEY) ?? "";
    // the address may be pasted into a tab that shows the page: a browser then loads nothing by itself
    addEventListener("hashchange", () => {
        const before = token;
        if (keepGiven() && token !== before) location.reload();
    });
    return token;
}

/** Keep the token of the address, if there is one, and clean the address. */
function keepGiven() {
    const given = location.hash.slice(1);
    if (!/^[\w-]{20,}$/u.test(given)) return false;
    token = given;
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
    return true;
}

/** The header of a request. */
export const authorization = () => (token === "" ? {} : {authorization: `Bearer ${token}`});

/** The part of an EventSource that stream.js uses, received by fetch with the token. */
export function authorizedSource(url) {
    const aborting = new AbortController();
    const source = {onopen: null, onmessage: null, onerror: null, close: () => aborting.abort()};
    receive(url, source, aborting.signal).catch(() => {}).finally(() => aborting.signal.aborted || source.onerror?.());
    return source;
}

async function receive(url, source, signal) {
    const answer = await fetch(url, {headers: {accept: "text/event-stream", ...authorization()}, cache: "no-store", signal});
    if (!answer.ok) return;
    source.onopen?.();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let parts = [];
    for (;;) {
        const {value, done} = await reader.read();
        if (done) return;
        parts.push(value);
        if (!value.includes("\n\n") && !(value.startsWith("\n") && parts.length > 1)) continue;
        const blocks = parts.join("").split("\n\n");
        parts = [blocks.pop()];
        for (const block of blocks) if (!signal.aborted) deliver(block, source);
    }
}

function deliver(block, source) {
    const fields = {};
    for (const line of block.split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if ("data" in fields) source.onmessage?.({data: fields.data, lastEventId: fields.id ?? ""});
}
