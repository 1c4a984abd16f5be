// Names with their values.
//
//   facts([["Account", shown(account)], failed && ["Error", text]])       a list of them; what is false is left out
//   fill(element, figures([["requests", "12"], ["refused", "3", "bad"]]))   the content of a <dl class="figures">

import {h} from "./dom.js";

export const facts = rows => h("dl", {class: "facts"}, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const figures = rows => rows.filter(Boolean).map(([name, value, tone]) => h("div", {}, h("dt", {}, name), h("dd", {class: tone}, value)));
