// A button that copies a text.
//
//   copyButton({text: () => curl, label: t("copy"), done: t("copied"), failed: t("copy failed")})

import {h} from "./dom.js";
import {notify, warn} from "./notice.js";

export function copyButton({text, label, done, failed, name = label}) {
    return h(
        "button",
        {
            type: "button",
            class: "copy",
            "aria-label": name,
            onclick: async () => ((await copied(text())) ? notify(done) : warn(failed)),
        },
        label,
    );
}

async function copied(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        return copiedBySelection(text); // a page under a name, without TLS, has no clipboard
    }
}

function copiedBySelection(text) {
    const area = h("textarea", {class: "offscreen", readonly: true, "aria-hidden": "true", tabindex: "-1"});
    area.value = text;
    const focused = document.activeElement;
    (focused?.closest("dialog") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
}
