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

export const SETTLED = STATES.filter(([name]) => name !== "waiting");

/** Those into which requests bring accounts: the charts have them. */
export const SENT = STATES.slice(0, 4);

const TONES = {refused: "warn", failed: "bad", unknown: "info", waiting: "warn", duplicate: "", skipped: ""};

/** The word of a state in the report's rows: a done account has the word of its operation, such as "invited". */
export const stateWord = ({report}, state) => (state === "done" ? (report?.done_word ?? "done") : state);

/** The tag of a word of the report's rows. */
export function stateTag({t, has, report}, word) {
    const text = word === report?.done_word ? t("done") : has(word) ? t(word) : word;
    return h("span", {class: `tag ${TONES[word] ?? "good"}`}, text);
}
