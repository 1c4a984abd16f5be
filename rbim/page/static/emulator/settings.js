// The emulator as a whole: its clock, its state as a file, and a fresh start.

import {confirmed} from "../parts/dialog.js";
import {h} from "../parts/dom.js";
import {chosenFile, download} from "../parts/download.js";
import {form} from "../parts/form.js";
import {notify} from "../parts/notice.js";
import {ask} from "../parts/request.js";

const STEPS = {"1 s": 1, "1 min": 60, "1 h": 3600, "1 d": 86400};

export function settingsView(page) {
    const clock = clockCard(page);
    return {
        element: h("section", {class: "cards"}, clock.element, stateCard(page), freshCard(page)),
        refresh: clock.refresh,
    };
}

function clockCard(page) {
    const {t} = page;
    const now = h("dd");
    const kind = h("dd");
    const press = async seconds => {
        const done = await page.press("POST", "clock/advance", {seconds});
        if (done !== undefined) notify(t("clock advanced"));
    };
    const buttons = h("div", {class: "button-row"}, Object.entries(STEPS).map(([name, seconds]) => h("button", {type: "button", onclick: () => press(seconds)}, `+ ${t(`step ${name}`)}`)));
    const by = form({
        label: t("advance"),
        fields: [{name: "seconds", label: t("seconds"), type: "number", min: "0", value: "90", required: true}],
        action: t("advance"),
        submit: async ({seconds}) => {
            await page.act("POST", "clock/advance", {seconds});
            notify(t("clock advanced"));
        },
    });
    const moves = h("div", {class: "stack", hidden: true}, buttons, by);
    const stands = h("p", {class: "muted"}, t("system clock hint"));
    return {
        element: h("div", {class: "card", id: "card-clock"}, h("h2", {}, t("clock")), h("dl", {class: "facts"}, h("dt", {}, t("now")), now, h("dt", {}, t("kind")), kind), moves, stands),
        async refresh() {
            const found = await ask("GET", "clock");
            now.textContent = page.dateTime(found.now);
            kind.textContent = t(found.emulated ? "emulated" : "system clock");
            moves.hidden = !found.emulated;
            stands.hidden = found.emulated;
        },
    };
}

function stateCard(page) {
    const {t} = page;
    const save = async () => {
        const state = await page.press("GET", "state");
        if (state !== undefined) download("emulator-state.json", new Blob([JSON.stringify(state, null, 1)], {type: "application/json"}));
    };
    const load = async () => {
        const text = await chosenFile(".json,application/json");
        if (text === null) return;
        const done = await page.press("PUT", "state", text);
        if (done !== undefined) notify(t("state loaded", done));
    };
    return h(
        "div",
        {class: "card", id: "card-state"},
        h("h2", {}, t("state")),
        h("p", {class: "muted"}, t("state hint")),
        h("div", {class: "button-row"}, h("button", {type: "button", onclick: save}, t("download state")), h("button", {type: "button", onclick: load}, t("upload state"))),
    );
}

function freshCard(page) {
    const {t} = page;
    const reset = async () => {
        if (!(await confirmed({title: t("reset"), text: t("reset question"), yes: t("reset"), no: t("cancel")}))) return;
        const done = await page.press("POST", "reset");
        if (done !== undefined) notify(t("reset done"));
    };
    return h(
        "div",
        {class: "card", id: "card-fresh"},
        h("h2", {}, t("fresh start")),
        h("p", {class: "muted"}, t("fresh hint")),
        h(
            "div",
            {class: "button-row"},
            h("button", {type: "button", onclick: () => page.press("DELETE", "requests")}, t("clear requests")),
            h("button", {type: "button", onclick: () => page.press("DELETE", "deliveries")}, t("clear deliveries")),
            h("button", {type: "button", class: "danger", onclick: reset}, `${t("reset")}…`),
        ),
    );
}
