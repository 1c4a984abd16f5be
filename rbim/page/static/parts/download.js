// A file for the person who looks at the page, and a file of theirs as a text.
//
//   download("state.json", new Blob([JSON.stringify(state)], {type: "application/json"}));
//   const text = await chosenFile(".json");     // null if no file was chosen

import {h} from "./dom.js";

export function download(name, blob) {
    const address = URL.createObjectURL(blob);
    h("a", {href: address, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function chosenFile(accept) {
    return new Promise(resolve => {
        const input = h("input", {type: "file", accept});
        input.addEventListener("change", async () => resolve(input.files.length > 0 ? await input.files[0].text() : null));
        input.addEventListener("cancel", () => resolve(null));
        input.click();
    });
}
