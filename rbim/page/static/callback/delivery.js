// One delivery: how it was answered, what happened to its event, and all of it in a dialog, with why it was refused.

import {openDialog} from "../parts/dialog.js";
import {fill, h, shown} from "../parts/dom.js";
import {facts} from "../parts/facts.js";
import {ask} from "../parts/request.js";

const TONES = {handled: "good", failed: "warn", dead: "bad", quarantine: "warn", overflow: "info"};

export const isRefused = item => item.status !== null && item.status !== 200 && item.status < 500;

/** Why a delivery was refused, in words; null if it is not kept. */
export async function findingOf(item) {
    return (await ask("GET", `refused?number=${item.number}`)).finding;
}

export function answerTag({status}) {
    const tone = status === 200 ? "good" : status === null ? "" : status >= 500 ? "warn" : "bad";
    return h("span", {class: `tag ${tone}`}, status === null ? "–" : String(status));
}

export function stateTag({t, levels}, {state, attempt, status, type}) {
    // events that another process handles end there
    if (state === "") return status === 200 && type !== "" && levels?.handling.length > 0 ? h("span", {class: "tag"}, t("waiting")) : "";
    const name = state === "handled" && attempt > 1 ? "handled later" : state;
    return h("span", {class: `tag ${TONES[state] ?? ""}`}, t(`state ${name}`, {n: attempt}));
}

export async function openDelivery(page, item) {
    const {t, number, dateTime} = page;
    const about = facts([
        [t("column time"), dateTime(item.at)],
        [t("column answer"), [answerTag(item), ` ${number(item.ms)} ms`]],
        [t("column type"), shown(item.type || "–")],
        [t("column conversation"), shown(item.conversation || "–")],
        item.key && [t("key"), h("code", {}, item.key)],
        item.state && [t("state"), stateTag(page, item)],
        item.reason && [t("reason"), [item.reason, item.detail ? ": " : "", shown(item.detail)]],
        item.error && [t("the error"), shown(item.error)],
    ]);
    const diagnosis = h("div", {});
    openDialog({
        title: `${t("column event")} ${number(item.number)}`,
        close: t("close"),
        body: [about, isRefused(item) && h("h3", {}, t("diagnosis")), diagnosis],
    });
    if (!isRefused(item)) return;
    fill(diagnosis, h("p", {class: "muted"}, t("working")));
    try {
        const finding = await findingOf(item);
        fill(diagnosis, finding ? h("p", {class: "finding"}, shown(finding)) : h("p", {class: "muted"}, t("diagnosis none")));
    } catch (error) {
        fill(diagnosis, h("p", {class: "problem"}, error.message || t("unreachable")));
    }
}
