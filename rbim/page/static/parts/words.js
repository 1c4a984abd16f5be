// Language, words, numbers and times.
//
//   const {t, language, number, seconds} = speech(words)   words: {en: {key: "text"}, zh: {key: "text"}}
//   t("sent", {n: 3})                                      the text of a key; {n} is replaced
//
// A page has one module of words. The words below are those of the shared modules: they are added to each page's.

const SHARED = {
    "en": {
        "cancel": "Cancel",
        "close": "Close",
        "copied": "Copied",
        "copy": "Copy",
        "copy failed": "Copying is not allowed here: select the text and copy it by hand.",
        "filter": "Filter",
        "live": "Live",
        "live lost": "Connection lost: trying again",
        "live paused": "Paused while hidden",
        "missed": "{n} older ones are not kept",
        "more": "Show more",
        "new ones": "{n} new",
        "no token": "Open this page by the address that the command printed: it ends with # and a token.",
        "not connected": "Connecting…",
        "pause": "Pause",
        "resume": "Resume",
        "shown": "{shown} of {all} shown",
        "unreachable": "The server does not answer."
    },
    "zh": {
        "cancel": "取消",
        "close": "关闭",
        "copied": "已复制",
        "copy": "复制",
        "copy failed": "此处不允许复制：请选中文本后手动复制。",
        "filter": "筛选",
        "live": "实时",
        "live lost": "连接已断开，正在重试",
        "live paused": "页面隐藏时暂停",
        "missed": "更早的 {n} 条未保留",
        "more": "显示更多",
        "new ones": "新增 {n} 条",
        "no token": "请使用命令打印的地址打开此页面：地址以 # 和令牌结尾。",
        "not connected": "正在连接…",
        "pause": "暂停",
        "resume": "继续",
        "shown": "显示 {shown} 条，共 {all} 条",
        "unreachable": "服务器没有响应。"
    }
};

const LANGUAGES = {en: "en", zh: "zh-CN"};

/** The first language of the browser that the words have; otherwise English. */
export function chosen(wanted) {
    return wanted.map(each => each.toLowerCase().split("-")[0]).find(each => each in LANGUAGES) ?? "en";
}

export function speech(words) {
    const language = chosen(navigator.languages ?? [navigator.language]);
    const table = {...SHARED[language], ...words[language]};
    const whole = new Intl.NumberFormat(LANGUAGES[language], {maximumFractionDigits: 0});
    const precise = new Intl.NumberFormat(LANGUAGES[language], {maximumSignificantDigits: 3});
    document.documentElement.lang = LANGUAGES[language];

    function t(key, values = {}) {
        const text = table[key];
        if (text === undefined) throw new Error(`no word: ${key}`);
        return text.replace(/\{(\w+)\}/gu, (_, name) => String(values[name]));
    }

    return {
        language,
        t,
        has: key => key in table,
        number: value => whole.format(value),
        /** A duration: 0.4 ms, 12 ms, 1.25 s, 3 min 20 s, 2 h 5 min. */
        duration: value => duration(value, precise, whole),
        /** A number of 0 or more per second, as a number: 12.3, 1,234. */
        rate: value => (value >= 100 ? whole.format(value) : value.toFixed(1)),
        /** A number of bytes: 512 B, 1.4 kB. */
        bytes: value => (value < 1000 ? `${whole.format(value)} B` : `${precise.format(value / 1000)} kB`),
        time: moment => new Date(moment).toLocaleTimeString(LANGUAGES[language], {hour12: false}),
        dateTime: moment => new Date(moment).toLocaleString(LANGUAGES[language], {hour12: false}),
    };
}

function duration(value, precise, whole) {
    if (value < 0.001) return `${precise.format(Math.round(value * 100_000) / 100)} ms`;
    if (value < 1) return `${precise.format(value * 1000)} ms`;
    if (value < 60) return `${precise.format(value)} s`;
    if (value < 3600) return `${whole.format(Math.floor(value / 60))} min ${whole.format(Math.floor(value % 60))} s`;
    return `${whole.format(Math.floor(value / 3600))} h ${whole.format(Math.floor((value % 3600) / 60))} min`;
}
