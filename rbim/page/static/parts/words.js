// Language, words, numbers and times.
//
//   const {t, number, duration} = speech(words)   words: {key: ["English", "中文"]}
//   t("sent", {n: 3})                             the text of a key; {n} is replaced
//
// A page has one module of words. The words below are those of the shared modules: they are added to each page's.

const SHARED = {
    "cancel": ["Cancel", "取消"],
    "close": ["Close", "关闭"],
    "copied": ["Copied", "已复制"],
    "copy": ["Copy", "复制"],
    "copy failed": ["Copying is not allowed here: select the text and copy it by hand.", "此处不允许复制：请选中文本后手动复制。"],
    "filter": ["Filter", "筛选"],
    "live": ["Live", "实时"],
    "live lost": ["Connection lost: trying again", "连接已断开，正在重试"],
    "live paused": ["Paused while hidden", "页面隐藏时暂停"],
    "missed": ["{n} older ones are not kept", "更早的 {n} 条未保留"],
    "more": ["Show more", "显示更多"],
    "new ones": ["{n} new", "新增 {n} 条"],
    "no token": ["Open this page by the address that the command printed: it ends with # and a token.", "请使用命令打印的地址打开此页面：地址以 # 和令牌结尾。"],
    "not connected": ["Connecting…", "正在连接…"],
    "pause": ["Pause", "暂停"],
    "resume": ["Resume", "继续"],
    "server gone": ["The server of this page does not answer: rbim page has ended. What is shown here is the last state.", "此页面的服务没有响应：rbim page 已结束。这里显示的是最后的状态。"],
    "shown": ["{shown} of {all} shown", "显示 {shown} 条，共 {all} 条"],
    "unreachable": ["The server does not answer.", "服务器没有响应。"],
};

const LANGUAGES = {en: "en", zh: "zh-CN"};

/** The first language of the browser that the words have; otherwise English. */
function chosen(wanted) {
    return wanted.map(each => each.toLowerCase().split("-")[0]).find(each => each in LANGUAGES) ?? "en";
}

export function speech(words) {
    const language = chosen(navigator.languages ?? [navigator.language]);
    const table = {...SHARED, ...words};
    const column = Object.keys(LANGUAGES).indexOf(language);
    const whole = new Intl.NumberFormat(LANGUAGES[language], {maximumFractionDigits: 0});
    const precise = new Intl.NumberFormat(LANGUAGES[language], {maximumSignificantDigits: 3});
    document.documentElement.lang = LANGUAGES[language];

    function t(key, values = {}) {
        if (!(key in table)) throw new Error(`no word: ${key}`);
        return table[key][column].replace(/\{(\w+)\}/gu, (_, name) => String(values[name]));
    }

    return {
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
