// Accounts: in how many groups each is, whether it has logged in, and first logins.

import {form} from "../parts/form.js";
import {h, shown} from "../parts/dom.js";
import {notify} from "../parts/notice.js";
import {ask, segment} from "../parts/request.js";
import {dataTable} from "../parts/table.js";

export function accountsView(page) {
    const {t, number} = page;
    const search = h("input", {type: "search", placeholder: t("search accounts"), "aria-label": t("search accounts")});
    const count = h("span", {class: "muted"});
    const table = dataTable({
        caption: t("tab accounts"),
        empty: t("no account so far"),
        key: each => each.account,
        columns: [
            {label: t("account"), cell: each => shown(each.account, {most: 80})},
            {label: t("tab groups"), class: "number narrow", cell: each => number(each.groups)},
            {label: t("logged in"), class: "narrow", cell: each => login(page, each)},
        ],
    });
    const firstLogin = form({
        label: t("first login"),
        fields: [{name: "account", label: t("account"), required: true, hint: t("first login hint")}],
        action: t("log in"),
        submit: async ({account}) => {
            await page.act("POST", "logins", {account});
            notify(t("logged in now", {account}));
        },
    });
    search.addEventListener("input", () => view.refresh());
    const view = {
        element: h(
            "section",
            {class: "split"},
            h("div", {class: "stack"}, h("div", {class: "toolbar card"}, search, count), table.element),
            h("div", {class: "card"}, h("h2", {}, t("first login")), firstLogin),
        ),
        async refresh() {
            const wanted = search.value.trim();
            const {total, accounts} = await ask("GET", wanted === "" ? "accounts" : `accounts/with/${segment(wanted)}`);
            if (search.value.trim() !== wanted) return;
            table.show(accounts);
            count.textContent = t("shown", {shown: number(accounts.length), all: number(total)});
        },
    };
    return view;
}

function login(page, each) {
    const {t} = page;
    if (each.logged_in) return h("span", {class: "tag good"}, t("yes"));
    const press = async () => {
        const done = await page.press("POST", "logins", {account: each.account});
        if (done !== undefined) notify(t("logged in now", {account: each.account}));
    };
    return h(
        "span",
        {class: "button-row"},
        h("span", {class: "tag warn"}, t("never")),
        h("button", {type: "button", class: "small", "aria-label": `${t("log in")}: ${each.account}`, onclick: press}, t("log in")),
    );
}
