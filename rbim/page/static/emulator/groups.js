// Groups: the newest, or those that are searched; each with its members, who waits to join, and what may be done for them.

import {openDialog} from "../parts/dialog.js";
import {fill, h, shown} from "../parts/dom.js";
import {facts} from "../parts/facts.js";
import {notify} from "../parts/notice.js";
import {ask, segment} from "../parts/request.js";
import {dataTable} from "../parts/table.js";

const MEMBERS = 200; // shown of a group

export function groupsView(page) {
    const {t, number} = page;
    const search = h("input", {type: "search", placeholder: t("search groups"), "aria-label": t("search groups")});
    const count = h("span", {class: "muted"});
    const table = dataTable({
        caption: t("tab groups"),
        empty: t("no group so far"),
        key: group => group.group_id,
        columns: [
            {label: t("name"), cell: group => h("button", {type: "button", class: "link", onclick: () => openGroup(page, group.group_id)}, group.name === "" ? "–" : shown(group.name, {most: 60}))},
            {label: t("identifier"), class: "narrow", cell: group => h("code", {}, shown(group.group_id, {most: 30}))},
            {label: t("owner"), cell: group => shown(group.owner, {most: 30})},
            {label: t("members"), class: "number narrow", cell: group => `${number(group.members)} / ${number(group.member_limit)}`},
            {label: t("waiting"), class: "narrow", cell: group => waitingTags(page, group)},
            {label: t("joining"), class: "narrow", cell: group => t(`permission ${group.permission}`)},
        ],
    });
    search.addEventListener("input", () => view.refresh());

    const view = {
        element: h("section", {class: "stack"}, h("div", {class: "toolbar card"}, search, count), table.element),
        async refresh() {
            const wanted = search.value.trim();
            const path = wanted === "" ? "groups" : `groups/with/${segment(wanted)}`;
            const {total, groups} = await ask("GET", path);
            if (search.value.trim() !== wanted) return;
            table.show(groups);
            count.textContent = t("shown", {shown: number(groups.length), all: number(total)});
        },
    };
    return view;
}

function waitingTags({t, number}, group) {
    return h(
        "span",
        {class: "chips"},
        group.invited > 0 && h("span", {class: "tag info"}, t("invited n", {n: number(group.invited)})),
        group.applied > 0 && h("span", {class: "tag warn"}, t("applied n", {n: number(group.applied)})),
    );
}

async function openGroup(page, id) {
    const {t} = page;
    const body = h("div", {class: "stack"});
    const group = await load();
    if (group === undefined) return;
    const dialog = openDialog({title: shown(group.name || id, {most: 200}), close: t("close"), body: [body]});

    /** Show the group again after each change that is made here. */
    async function load() {
        const found = await page.press("GET", `groups/${encodeURIComponent(id)}`);
        if (found !== undefined) fill(body, content(page, found, decide));
        return found;
    }

    async function decide(path, account, text) {
        const done = await page.press("POST", path, {group_id: id, account});
        if (done === undefined) return;
        notify(text);
        await load();
        dialog.querySelector(".body").focus();
    }
}

function content(page, group, decide) {
    const {t, number} = page;
    const rows = [
        [t("identifier"), h("code", {}, shown(group.group_id))],
        [t("owner"), shown(group.owner || "–")],
        [t("kind"), `${t(`target ${group.target}`)}, ${t("up to", {n: number(group.member_limit)})}`],
        [t("joining"), t(`permission ${group.permission}`)],
        [t("created"), page.dateTime(group.created)],
        group.declared !== "" && [t("announcement"), shown(group.declared)],
        group.group_domain !== null && [t("extension"), shown(group.group_domain)],
    ];
    return [
        facts(rows),
        members(page, group),
        group.invitations.length > 0 && waiters(page, group.invitations, "invitations", decide),
        group.applications.length > 0 && waiters(page, group.applications, "applications", decide),
    ];
}

function members({t, number}, group) {
    const table = dataTable({
        caption: `${t("members")}: ${number(group.accounts.length)}`,
        visible: true,
        empty: t("no member"),
        key: each => each.account,
        columns: [
            {label: t("account"), cell: each => shown(each.account, {most: 80})},
            {label: t("role"), class: "narrow", cell: each => h("span", {class: each.role === "2" ? "tag" : "tag info"}, t(`role ${each.role}`))},
        ],
    });
    table.show(group.accounts.slice(0, MEMBERS));
    const more = group.accounts.length - MEMBERS;
    return [table.element, more > 0 && h("p", {class: "muted"}, t("more members", {n: number(more)}))];
}

function waiters({t}, accounts, kind, decide) {
    const [yes, no] = {invitations: ["confirm", "decline"], applications: ["approve", "reject"]}[kind];
    const button = (verb, account, style) =>
        h(
            "button",
            {
                type: "button",
                class: `small ${style}`,
                "aria-label": `${t(verb)}: ${account}`,
                onclick: () => decide(`${kind}/${verb}`, account, t(`done ${verb}`, {account})),
            },
            t(verb),
        );
    const table = dataTable({
        caption: t(kind),
        visible: true,
        empty: "",
        key: account => account,
        columns: [
            {label: t("account"), cell: account => shown(account, {most: 80})},
            {label: t("decision"), class: "narrow", cell: account => h("span", {class: "button-row"}, button(yes, account, "primary"), button(no, account, ""))},
        ],
    });
    table.show(accounts);
    return table.element;
}
