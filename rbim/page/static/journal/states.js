// The states of rows: their order, their colours and their words.

import {h} from "../parts/dom.js";

/** Each state with its colour, in the order of the bar. */
export const STATES = [
    ["done", "good"],
    ["refused", "warn"],
    ["failed", "bad"],
    ["unknown", "info"],
    ["skipped", "quiet-tone"],
    ["duplicate", "quiet-tone"],
    ["waiting", "rest-tone"],
];

const TONES = Object.fromEntries(STATES.map(([name, tone]) => [name, tone.endsWith("-tone") ? "" : tone]));

/** The word of a state in the report's rows: a done account has the word of its operation, such as "invited". */
export const stateWord = ({state}, name) => (name === "done" ? (state?.report.done_word ?? "done") : name);

/** The tag of a word of the report's rows. */
export function stateTag({t, state}, word) {
    const name = word === state?.report.done_word ? "done" : word;
    return h("span", {class: `tag ${TONES[name]}`}, t(name));
}
