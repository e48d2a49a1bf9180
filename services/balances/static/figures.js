// Everything but the picture: the tiles, the invariants' lights, what happened, the reconciliation and the totals.

import { el, find, setData, setSign, setText, sign } from "./dom.js";
import { NONE, all, count, counted, date, money, plural, seconds, time } from "./format.js";

const NEWS = 8;
const STANDINGS = { ok: ["good", "holds"], broken: ["bad", "broken"], unknown: ["unknown", "not judged"] };

const invariants = (now) => {
  const of = (standing) => now.lights.filter((light) => light.standing === standing).length;
  const [good, bad, unknown] = [of("ok"), of("broken"), of("unknown")];
  const note = unknown ? unknown + " not judged yet" : "all are judged";
  return bad ? ["bad", bad + " broken", note] : [unknown ? "unknown" : "good", good + " hold", note];
};

const drift = (now) => {
  if (!now.view) return ["warn", NONE, "the view does not answer"];
  const off = now.view.currencies.filter((one) => one.sum !== "0");
  if (off.length) return ["bad", off.map((one) => money(one.sum, one.digits) + " " + one.currency).join(", "), "all balances should sum to 0"];
  if (!now.view.currencies.length) return ["unknown", NONE, "nothing was posted yet"];
  return ["good", "0.00", "all balances, " + plural(now.view.currencies.length, "currency", "currencies")];
};

const effects = (now) => {
  const [doubt, failed] = [now.counts.effects_in_doubt, now.counts.effects_failed];
  const bad = (doubt ? doubt.value : 0) + (failed ? failed.value : 0);
  const note = now.redis_trusted === false ? "stopped: Redis is not trusted" : counted(doubt) + " in doubt, " + counted(failed) + " failed";
  return [now.redis_trusted === false || bad ? "warn" : "plain", counted(now.counts.effects_sent), note];
};

const view = (now) => {
  if (!now.view) return ["bad", NONE, now.view_failure || "does not answer"];
  const behind = now.view.behind_s;
  if (behind === null) return ["warn", NONE, "the brokers do not report the topic's end"];
  return [behind > 5 ? "warn" : "good", seconds(behind), "behind ledger.postings"];
};

const reconciled = (now) => {
  const last = now.reconciliation;
  if (!last) return ["unknown", NONE, now.runs_known ? "there was none yet" : "not read yet"];
  return [last.verdict === "breaks" ? "bad" : "good", last.verdict, seconds((now.at_ms - last.at_ms) / 1000) + " ago"];
};

// Each tile: name for tests, label, and its kind, value and note of a snapshot
const TILES = [
  ["invariants", "Invariants", invariants],
  ["drift", "Drift", drift],
  ["received", "Payments received", (now) => ["plain", counted(now.counts.received), counted(now.counts.deduplicated) + " repeats, " + counted(all(now.dead_letters)) + " dead letters"]],
  ["posted", "Postings", (now) => ["plain", now.view ? count(now.view.debits + now.view.credits) : NONE, now.view ? plural(now.view.declines, "decline", "declines") : "the view does not answer"]],
  ["effects", "Effects done", effects],
  ["view", "View", view],
  ["reconciled", "Reconciled", reconciled],
];

const tiles = (list) => {
  const made = TILES.map(([name, label]) => {
    const [value, note] = [el("span", { class: "value" }, NONE), el("span", { class: "dim" }, "\u00a0")];
    const tile = el("div", { class: "tile", "data-tile": name, "data-kind": "unknown" }, el("dt", {}, label), el("dd", {}, value, note));
    return { tile, value, note };
  });
  list.replaceChildren(...made.map((one) => one.tile));
  return (now) => TILES.forEach(([, , read], at) => {
    const [kind, value, note] = read(now);
    setData(made[at].tile, "kind", kind);
    setText(made[at].value, value);
    setText(made[at].note, note);
  });
};

const lights = (list) => {
  const known = new Map();
  const make = (light) => {
    const [word, found, judge] = [el("span", { class: "word" }), el("span", { class: "found-out" }), el("span", { class: "dim" })];
    const head = el("h3", {}, sign("unknown"), el("span", {}, el("b", {}, light.id), " " + light.name), word);
    const item = el("li", { class: "light", "data-light": light.id }, head, el("p", { class: "dim" }, light.statement), el("p", { class: "judged" }, found, " ", judge));
    list.append(item);
    return { item, word, found, judge };
  };
  return (now) => now.lights.forEach((light) => {
    if (!known.has(light.id)) known.set(light.id, make(light));
    const { item, word, found, judge } = known.get(light.id);
    const [kind, text] = STANDINGS[light.standing];
    setData(item, "standing", light.standing);
    setSign(item, kind);
    setText(word, text);
    setText(found, light.detail);
    setText(judge, "\u2014 " + light.judged_by + (light.at_ms === null ? "" : ", " + when(light.at_ms, now.at_ms)));
  });
};

const when = (ms, now) => (now - ms < 12 * 3600 * 1000 ? time(ms) : date(ms));

const news = (list, none) => {
  let newest = 0;
  return (now) => {
    if (now.events.length && now.events[0].number < newest) newest = 0; // a restarted view counts from 1 again
    for (const event of [...now.events].reverse()) {
      if (event.number <= newest) continue;
      newest = event.number;
      const item = el("li", { "data-bad": event.bad }, sign(event.bad ? "bad" : "good"), el("span", {}, el("time", { datetime: new Date(event.at_ms).toISOString() }, time(event.at_ms)), " " + event.text));
      list.prepend(item);
    }
    while (list.children.length > NEWS) list.lastElementChild.remove();
    none.hidden = newest > 0;
  };
};

const reconciliation = (box) => {
  let shown = null;
  return (now) => {
    const key = JSON.stringify([now.reconciliation, now.runs_known]);
    if (key === shown) return;
    shown = key;
    const last = now.reconciliation;
    if (!last) {
      box.replaceChildren(el("p", { class: "dim" }, now.runs_known ? "There was none yet: once reconcile makes one." : "It is not known yet."));
      return;
    }
    const breaks = Object.entries(last.breaks).map(([kind, found]) => el("li", {}, plural(found, "break", "breaks") + " of kind " + kind));
    box.replaceChildren(
      el("p", { class: "verdict", "data-verdict": last.verdict }, sign(last.verdict === "breaks" ? "bad" : "good"), el("b", {}, last.verdict), " \u00b7 " + date(last.at_ms)),
      el("p", { class: "dim" }, "Cut " + last.cut_id + (last.full ? ", from the beginning of the topics." : ".")),
      breaks.length ? el("ul", {}, ...breaks) : el("p", { class: "dim" }, "No open break of any kind."),
      ...(last.oldest_at_ms === null ? [] : [el("p", {}, "The oldest was shown by the cut of " + date(last.oldest_at_ms) + ".")]),
      ...(last.explained ? [el("p", { class: "dim" }, plural(last.explained, "break is", "breaks are") + " explained: once breaks list.")] : []),
    );
  };
};

const cell = (text, label) => el("td", { class: "number", "data-label": label }, text);

const totals = (box) => {
  let shown = null;
  return (now) => {
    const currencies = now.view ? now.view.currencies : [];
    const key = JSON.stringify(currencies);
    if (key === shown) return;
    shown = key;
    if (!currencies.length) {
      box.replaceChildren(el("p", { class: "dim" }, "No balances yet."));
      return;
    }
    const holders = [...new Set(currencies.flatMap((one) => Object.keys(one.house)))].sort();
    const head = el("tr", {}, el("th", { scope: "col" }, "Accounts"), ...currencies.map((one) => el("th", { scope: "col", class: "number" }, one.currency)));
    const row = (name, read, kind) => el("tr", { class: kind }, el("th", { scope: "row" }, name), ...currencies.map((one) => cell(read(one), one.currency)));
    const value = (one, minor) => (minor === undefined ? NONE : money(minor, one.digits));
    box.replaceChildren(
      el(
        "table",
        {},
        el("caption", {}, "Balances by currency"),
        el("thead", {}, head),
        el(
          "tbody",
          {},
          row("clients", (one) => value(one, one.clients)),
          ...holders.map((holder) => row(holder, (one) => value(one, one.house[holder]))),
          row("sum", (one) => value(one, one.sum), "sum"),
        ),
      ),
    );
  };
};

const positions = (box) => {
  const head = ["partition", "next offset", "last stable", "behind"];
  const body = el("tbody");
  box.replaceChildren(
    el("table", {}, el("caption", {}, "Partitions of ledger.postings"), el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col", class: "number" }, text)))), body),
  );
  return (now) => {
    const rows = now.view ? now.view.positions : [];
    while (body.children.length < rows.length) body.append(el("tr", {}, ...head.map((text) => cell("", text))));
    while (body.children.length > rows.length) body.lastElementChild.remove();
    rows.forEach((one, at) => {
      const texts = [String(one.partition), count(one.next_offset), count(one.last_stable_offset), seconds(one.seconds_behind)];
      texts.forEach((text, column) => setText(body.children[at].children[column], text));
    });
  };
};

const cluster = (line) => (now) => {
  const brokers = now.brokers === null ? now.cluster_failure || "brokers not known yet" : now.brokers + " of " + now.brokers_seen + " brokers alive";
  const redis = { true: "Redis trusted", false: "Redis not trusted", null: "Redis not known" }[String(now.redis_trusted)];
  const ended = ["committed", "aborted", "unknown"].map((name) => counted(now.counts[name]) + " " + (name === "unknown" ? "of unknown outcome" : name));
  setText(line, [brokers, redis, "transactions: " + ended.join(", ")].join(" \u00b7 "));
};

const since = (line) => (now) => {
  const when_ = now.since_ms === null ? "" : "Counters of the services begin with their start, " + date(now.since_ms) + "; \u2265 marks one that a restart may have cut short. ";
  setText(line, when_ + "Lag \u2264 counts transaction markers, while its reader does not answer.");
};

/** What shows a snapshot everywhere but in the picture. */
export const figures = () => {
  const parts = [
    tiles(find("tiles")),
    lights(find("lights")),
    news(find("news"), find("no-news")),
    reconciliation(find("reconciliation")),
    totals(find("totals")),
    positions(find("positions")),
    cluster(find("cluster")),
    since(find("counted")),
  ];
  return (now) => parts.forEach((show) => show(now));
};
