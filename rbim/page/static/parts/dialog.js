// Dialogs: <dialog>, which keeps the focus, closes on Escape and gives the focus back.
//
//   openDialog({title: "Request 12", close: t("close"), body: [element], actions: [button]})  -> the <dialog>
//   if (await confirmed({title, text, yes: "Reset", no: "Cancel"})) ...

import {h} from "./dom.js";

let opened = 0;

export function openDialog({title, close, body, actions = [], small = false}) {
    const id = `dialog-${++opened}`;
    const dialog = h(
        "dialog",
        {"aria-labelledby": id, class: small ? "small" : null},
        h(
            "header",
            {},
            h("h2", {id}, title),
            h("button", {type: "button", class: "quiet close", "aria-label": close, onclick: () => dialog.close()}, "✕"),
        ),
        h("div", {class: "body", tabindex: "0", role: "group", "aria-labelledby": id}, body),
        actions.length > 0 && h("footer", {}, actions),
    );
    const opener = document.activeElement;
    const row = opener?.closest("tr");
    const place = [...(row?.querySelectorAll("button") ?? [])].indexOf(opener);
    dialog.addEventListener("close", () => {
        dialog.remove();
        if (!opener?.isConnected) row?.querySelectorAll("button")[place]?.focus(); // its row was shown anew meanwhile
    });
    dialog.addEventListener("click", event => {
        if (event.target === dialog) dialog.close(); // outside of its content
    });
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
}

export function confirmed({title, text, yes, no}) {
    return new Promise(resolve => {
        let answer = false;
        const press = value => () => {
            answer = value;
            dialog.close();
        };
        const dialog = openDialog({
            title,
            close: no,
            small: true,
            body: [h("p", {}, text)],
            actions: [
                h("button", {type: "button", onclick: press(false)}, no),
                h("button", {type: "button", class: "danger", onclick: press(true)}, yes),
            ],
        });
        dialog.addEventListener("close", () => resolve(answer));
    });
}
