// JSON to and from the page's server.
//
//   const state = await ask("GET", "state");
//   await ask("POST", "say", {sender: "1001", to: "1002", text: "hello"});
//
// A refused request throws Refused; its message is the server's own.

import {authorization} from "./access.js";

export class Refused extends Error {}

export async function ask(method, path, body = {}) {
    const options = {method, headers: {accept: "application/json", ...authorization()}, cache: "no-store"};
    if (method !== "GET") {
        options.headers["content-type"] = "application/json"; // the server obeys nothing else
        options.body = typeof body === "string" ? body : JSON.stringify(body);
    }
    let answer;
    try {
        answer = await fetch(path, options);
    } catch {
        throw new Refused(""); // no answer at all
    }
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
