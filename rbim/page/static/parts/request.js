// JSON and files from the page's server, JSON to it; and the token of a page that only its holder may use.
//
//   const state = await ask("GET", "state");
//   await ask("POST", "say", {sender: "1001", to: "1002", text: "hello"});
//   const {name, blob} = await askForFile("download?state=failed");
//
// A refused request throws Refused; its message is the server's own, "" without any answer.
//
// The token stands behind the # of the address, which a browser sends to no server. takeToken() keeps it for this tab and
// cleans the address; from then on every request has it.

const KEY = "rbim token";

let token = "";

export class Refused extends Error {}

export async function ask(method, path, body = {}) {
    const options = {method, headers: {accept: "application/json"}};
    if (method !== "GET") {
        options.headers["content-type"] = "application/json"; // the server obeys nothing else
        options.body = typeof body === "string" ? body : JSON.stringify(body);
    }
    const answer = await fetched(path, options);
    const text = await answer.text();
    let document = null;
    try {
        document = text === "" ? null : JSON.parse(text);
    } catch {
        throw new Refused(`HTTP ${answer.status}`);
    }
    if (!answer.ok) throw new Refused(document?.error ?? `HTTP ${answer.status}`);
    return document;
}

export async function askForFile(path) {
    const answer = await fetched(path, {headers: {}});
    if (!answer.ok) throw new Refused((await answer.json()).error);
    return {name: decodeURIComponent(answer.headers.get("content-disposition").split("''")[1]), blob: await answer.blob()};
}

async function fetched(path, options) {
    if (token !== "") options.headers.authorization = `Bearer ${token}`;
    try {
        return await fetch(path, {...options, cache: "no-store"});
    } catch {
        throw new Refused("");
    }
}

/** A text as a segment of a path. Of a dot or two a browser would make another path; the server ignores the space. */
export const segment = text => encodeURIComponent(/^\.\.?$/u.test(text) ? `${text} ` : text);

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
