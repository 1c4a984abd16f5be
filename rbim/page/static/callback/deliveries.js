// The deliveries as they come, and what happens to their events; the newest refused ones are explained.

import {h, shown} from "../parts/dom.js";
import {liveList} from "../parts/list.js";
import {answerTag, findingOf, isRefused, openDelivery, stateTag} from "./delivery.js";
import {overview} from "./overview.js";

const HELD = 1000; // deliveries whose changes are followed: those of the list
const NEWEST = 5; // refused deliveries that wait to be explained
const PAUSE = 500; // milliseconds between two explanations

export function deliveriesView(page) {
    const {t, number, time} = page;
    const byNumber = new Map();
    const head = overview(page);
    const list = liveList({
        caption: t("deliveries"),
        empty: t("deliveries empty"),
        t,
        number,
        columns: [
            {label: t("column time"), cell: item => time(item.at), class: "narrow"},
            {label: t("column answer"), cell: answerTag, class: "narrow"},
            {label: t("column type"), cell: item => [shown(item.type || "–", {most: 60}), item.resent ? ` (${t("resent")})` : ""], class: "narrow"},
            {label: t("column conversation"), cell: item => shown(item.conversation || "–", {most: 80}), class: "conversation"},
            {label: t("state"), cell: item => [stateTag(page, item), sentence(item)], class: "line"},
        ],
        filters: [
            {
                label: t("column answer"),
                options: [
                    ["", t("every type")],
                    ["accepted", t("filter accepted")],
                    ["refused", t("filter refused")],
                    ["trouble", t("filter trouble")],
                ],
                accepts: (item, value) =>
                    value === "" ||
                    (value === "accepted" && item.status === 200) ||
                    (value === "refused" && item.status !== 200) ||
                    (value === "trouble" && ["failed", "dead", "quarantine"].includes(item.state)),
            },
        ],
        key: item => item.number,
        text: item => [item.type, item.conversation, item.key, item.reason, item.detail, item.error, item.finding, item.status].join(" "),
        open: item => openDelivery(page, item),
    });

    function clear() {
        list.clear();
        byNumber.clear();
    }

    function add(items, {missed, count}) {
        for (const item of items) byNumber.set(item.number, item);
        for (const old of byNumber.keys()) {
            if (byNumber.size <= HELD) break;
            byNumber.delete(old);
        }
        explainLater(items.filter(isRefused));
        list.add(items, {all: count});
        if (missed > 0) list.missed(missed);
        page.badge("deliveries", count);
    }

    function change(changes) {
        for (const each of changes) {
            const item = byNumber.get(each.number);
            if (item !== undefined) list.update(Object.assign(item, each));
        }
    }

    // The newest refused deliveries are explained by themselves, one at a time: a flood of them must not keep the receiver busy.

    let unexplained = [];
    let explaining = false;

    function explainLater(items) {
        unexplained = [...unexplained, ...items].slice(-NEWEST);
        if (!explaining) explain();
    }

    async function explain() {
        explaining = true;
        while (unexplained.length > 0 && !page.ended) {
            const item = unexplained.pop();
            try {
                const finding = await findingOf(item);
                if (finding) {
                    item.finding = finding.split(/(?<=\.) (?=[A-Z])/u)[0]; // its first sentence
                    list.update(item);
                }
            } catch {
                // the sentence of the refusal stays
            }
            await new Promise(resolve => setTimeout(resolve, PAUSE));
        }
        explaining = false;
    }

    return {
        element: h("section", {class: "stack"}, head.elements, list.element),
        draw: head.draw,
        end: head.end,
        streams: {deliveries: {onStart: clear, onItems: add}, changes: {onItems: change}, points: head.points},
    };
}

function sentence(item) {
    const text = item.finding ?? (item.detail || item.error);
    return text ? h("span", {class: "why"}, shown(text, {most: 240})) : "";
}
