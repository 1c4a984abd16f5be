// The page of a file, behind a token: its frame, and the state of the file, asked for again and again.
//
//   const frame = follow({t, title: "rbim job", tabs: [...], onState: state => {}});
//   frame.source, frame.phase("Running", "good"), frame.panel (the tabs), frame.refresh() (ask now)
//
// A page in a hidden tab asks for nothing. While the server or the file does not answer, a banner says why.

import {fill, h, shown} from "./dom.js";
import {notices} from "./notice.js";
import {ask, takeToken} from "./request.js";
import {tabs} from "./tabs.js";

const PAUSE = 1000; // milliseconds between an answer and the next question

export function follow({t, title, tabs: entries, onState}) {
    const source = h("span", {class: "muted source"});
    const phase = h("span", {class: "pill", hidden: true});
    const live = h("span", {class: "pill"}, t("not connected"));
    const banner = h("div", {class: "banner", role: "status", hidden: true});
    const panel = tabs({label: title, tabs: entries});
    const brand = h("div", {class: "brand"}, h("img", {src: "static/parts/icon.svg", alt: ""}), h("h1", {}, title));
    let timer = 0;

    async function refresh() {
        clearTimeout(timer);
        if (document.hidden) return;
        try {
            onState(await ask("GET", "state"));
            say("good", t("live"), "");
        } catch (error) {
            say("bad", t("live lost"), error.message || t("server gone"));
        }
        clearTimeout(timer);
        timer = setTimeout(refresh, PAUSE);
    }

    function say(tone, text, problem) {
        live.className = `pill ${tone}`;
        live.textContent = text;
        if (banner.textContent === problem) return;
        banner.hidden = problem === "";
        fill(banner, shown(problem, {most: 400}));
    }

    if (takeToken() === "") {
        document.body.append(h("main", {}, h("h1", {}, title), h("p", {}, t("no token"))));
    } else {
        const bar = h("div", {class: "bar"}, brand, phase, source, h("span", {class: "spring"}), live);
        document.body.append(h("header", {class: "top-bar"}, bar, panel.bar), h("main", {}, banner, panel.panels), notices);
        document.addEventListener("visibilitychange", refresh);
        panel.begin();
        refresh();
    }
    return {
        source,
        panel,
        refresh,
        phase(text, tone) {
            phase.hidden = false;
            phase.className = `pill ${tone}`;
            phase.textContent = text;
        },
    };
}
