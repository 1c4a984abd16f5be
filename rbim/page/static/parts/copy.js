// A button that copies a text.
//
//   copyButton(curl, {t})
//   copyButton(curl, {t, name: t("copy the command")})     `name`: what a screen reader says

import {h} from "./dom.js";
import {notify, warn} from "./notice.js";

export function copyButton(text, {t, name = t("copy")}) {
    return h(
        "button",
        {
            type: "button",
            class: "copy",
            "aria-label": name,
            onclick: async () => ((await copied(text)) ? notify(t("copied")) : warn(t("copy failed"))),
        },
        t("copy"),
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
