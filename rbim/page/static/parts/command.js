// The page of a command that runs, behind a token: its top bar, and the feed until the command ends or is gone.
//
//   const bar = commandBar({t, title: "rbim invite"});     bar.title and bar.source are elements
//   bar.phase("Running", "good");
//   follow({t, bar, panel: tabs(...), onLevels, streams, onEnd: last => {}})
//
// The stream "end" has one item, which onEnd gets; null if the command cannot be reached any more. After that nothing comes.

import {authorizedSource, takeToken} from "./access.js";
import {h} from "./dom.js";
import {notices} from "./notice.js";
import {watch} from "./stream.js";

const GONE_AFTER = 4000; // milliseconds without a connection after which the command is taken for gone

export function commandBar({t, title: name}) {
    const title = h("h1", {}, name);
    const source = h("span", {class: "muted"});
    const phase = h("span", {class: "pill"}, t("not connected"));
    const live = h("span", {class: "pill"}, t("not connected"));
    return {
        element: h("div", {class: "bar"}, h("div", {class: "brand"}, h("img", {src: "static/parts/icon.svg", alt: ""}), title), phase, source, h("span", {class: "spring"}), live),
        title,
        source,
        live,
        phase(text, tone) {
            phase.className = `pill ${tone}`;
            phase.textContent = text;
        },
    };
}

export function follow({t, bar, panel, onLevels, streams, onEnd}) {
    if (takeToken() === "") {
        document.body.append(h("main", {}, h("h1", {}, "rbim"), h("p", {}, t("no token"))));
        return;
    }
    document.body.append(h("header", {class: "top-bar"}, bar.element, panel.bar), h("main", {}, panel.panels), notices);
    let known = false;
    let ended = false;
    let gone = 0;
    const stop = watch({
        url: "events",
        source: authorizedSource,
        stays: true,
        onState: state => {
            if (state === "open") {
                clearTimeout(gone);
                gone = 0;
            } else if (state === "lost" && known && gone === 0) {
                gone = setTimeout(() => finish(null), GONE_AFTER);
            }
            bar.live.className = `pill ${{open: "good", lost: "bad", paused: ""}[state]}`;
            bar.live.textContent = t({open: "live", lost: "live lost", paused: "live paused"}[state]);
        },
        onLevels: levels => {
            known = true;
            onLevels(levels);
        },
        streams: {...streams, end: {onItems: items => items.length > 0 && finish(items.at(-1))}},
    });
    panel.begin(); // a tab may ask for more: after the feed, which says how much there is

    function finish(last) {
        if (ended) return;
        ended = true;
        stop();
        bar.live.hidden = true;
        onEnd(last);
    }
}
