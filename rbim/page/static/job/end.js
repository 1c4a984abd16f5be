// The end of the command: its exit code, and the commands that go on from there.

import {copyButton} from "../parts/copy.js";
import {fill, h, shown} from "../parts/dom.js";

const EARLY = [3, 130]; // exit codes of jobs that can go on: not everything was done, or stopped by a signal

export function endCard(page) {
    const {t, has, number} = page;
    const element = h("section", {class: "card result", hidden: true, "aria-live": "polite"});

    function draw() {
        const {code = null, meaning, steps = [], gone} = page.ending;
        const tone = code === 0 ? "good" : code === null || EARLY.includes(code) ? "warn" : "bad";
        element.className = `card result ${tone}`;
        element.hidden = false;
        const heading = code === null ? t(gone ? "ended gone" : "ended killed") : t("ended exit", {code, meaning: has(`exit ${code}`) ? t(`exit ${code}`) : meaning});
        fill(
            element,
            h("h2", {}, heading),
            steps.length > 0 && h("h3", {class: "section"}, t("next steps")),
            steps.map(step => h("div", {}, h("p", {}, shown(stepText(step))), step.command && command(step.command))),
            h("p", {class: "muted"}, t("ended note")),
        );
    }

    /** The text of a step in the language of the page; the command's own text, if it is of no known kind. */
    function stepText({text, kind, reason, left, cause}) {
        if (!has(`step ${kind}`)) return text;
        const counted = Object.entries(left).filter(([, count]) => count > 0).map(([name, count]) => `${number(count)} ${t(`left ${name}`)}`);
        const stop = reason && has(`stop ${reason}`) ? t(`stop ${reason}`) : reason;
        return t(`step ${kind}`, {stop: cause ? `${stop}: ${cause}` : stop, left: counted.join(", ")});
    }

    function command(text) {
        return h("div", {class: "command"}, h("pre", {tabindex: "0"}, shown(text)), copyButton(text, {t}));
    }

    return {element, draw};
}
