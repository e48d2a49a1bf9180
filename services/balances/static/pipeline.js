// The pipeline as a picture: services and the topics between them, each with its figures.

import { el, setData, setSign, setText, sign, svg } from "./dom.js";
import { NONE, all, count, counted, milliseconds, plural, rate, seconds } from "./format.js";

const POINTS = 120; // a minute, at two a second
const WIDTH = 120;
const HEIGHT = 26;
const LONG_S = 1; // a transaction takes a tenth of it
const STATES = {
  ready: ["good", "ready"],
  partly: ["warn", "partly ready"],
  not_ready: ["warn", "not ready"],
  silent: ["bad", "no answer"],
  unwatched: ["unknown", "not watched"],
};
const open = (service) => {
  if (service.open_transactions === null) return NONE;
  return count(service.open_transactions) + (service.oldest_open_s >= LONG_S ? " \u00b7 " + Math.round(service.oldest_open_s) + " s" : "");
};
const OPEN = ["open", "open txns", (_, service) => open(service), "Transactions that its producers have open now"];

// Each figure: its name, its label, how it is read from a snapshot, and what it means where the label is short
const SERVICES = {
  gateway: [
    ["taken", "taken", (now) => counted(now.counts.taken), "Records taken: payments, sent singly or in batches, reversals and openings"],
    ["taken-rate", "per s", (now) => rate(now.counts.taken.per_s)],
  ],
  ingest: [
    ["deduplicated", "repeats", (now) => counted(now.counts.deduplicated)],
    ["dead-letters", "dead letters", (now) => counted(all(now.dead_letters))],
    OPEN,
  ],
  transform: [["accepted", "priced", (now) => counted(now.counts.accepted)], OPEN],
  ledger: [["refused", "fenced off", (now) => counted(now.counts.refused)], OPEN],
  balances: [
    ["postings", "postings", (now) => (now.view ? count(now.view.debits + now.view.credits) : NONE)],
    ["declines", "declines", (now) => (now.view ? count(now.view.declines) : NONE)],
    ["behind", "behind", (now) => (now.view ? seconds(now.view.behind_s) : NONE)],
  ],
  outbox: [
    ["sent", "done", (now) => counted(now.counts.effects_sent)],
    ["waiting", "waiting", (now) => count(now.effects_waiting)],
    ["doubt", "in doubt", (now) => counted(now.counts.effects_in_doubt)],
    OPEN,
  ],
};
const ORDER = [
  ["service", "gateway"],
  ["topic", "payments.raw"],
  ["service", "ingest"],
  ["topic", "payments.accepted"],
  ["service", "transform"],
  ["topic", "ledger.transfers"],
  ["service", "ledger"],
  ["topic", "ledger.postings"],
  ["service", "balances"],
  ["topic", "effects.requests"],
  ["service", "outbox"],
];

const figures = (rows) => {
  const list = el("dl");
  for (const [name, label, , title] of rows) {
    list.append(el("div", {}, el("dt", { title }, label), el("dd", { "data-figure": name }, NONE)));
  }
  return list;
};

class Service {
  constructor(name) {
    this.name = name;
    this.state = el("p", { class: "state" }, sign("unknown"), el("span", {}, "not known yet"));
    this.why = el("p", { class: "why" });
    this.element = el(
      "li",
      { class: "service at-" + name, "data-service": name, "data-state": "unknown" },
      el("h3", {}, name),
      this.state,
      this.why,
      figures(SERVICES[name]),
    );
  }

  show(now) {
    const service = now.services[this.name];
    const [kind, word] = STATES[service.state];
    const lasting = service.state === "ready" || service.state === "unwatched" ? "" : " for " + seconds((now.at_ms - service.since_ms) / 1000);
    setData(this.element, "state", service.state);
    setSign(this.state, kind);
    setText(this.state.lastElementChild, word + lasting);
    setText(this.why, this.because(service));
    for (const [name, , read] of SERVICES[this.name]) {
      setText(this.element.querySelector(`[data-figure="${name}"]`), service.state === "unwatched" ? NONE : read(now, service));
    }
  }

  because(service) {
    if (service.restoring) return "reads its state: " + plural(service.restoring, "offset", "offsets") + " left";
    if (service.state === "partly") return service.ready + " of " + service.instances + " instances";
    if (service.state === "silent" || service.state === "ready") return "";
    return service.reasons.join("; ");
  }
}

class Topic {
  constructor(name) {
    this.name = name;
    this.points = [];
    this.line = svg("polyline", { class: "spark", fill: "none" });
    this.area = svg("polygon", { class: "area" });
    this.rate = el("strong", { "data-figure": "rate" }, NONE);
    this.lag = el("dd", { "data-figure": "lag" }, NONE);
    this.held = el("dd", { "data-figure": "lso-lag" }, NONE);
    this.age = el("dd", { "data-figure": "age" }, NONE);
    const chart = { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.element = el(
      "li",
      { class: "topic at-" + name.replace(".", "-"), "data-topic": name },
      el("h3", {}, name),
      svg("svg", chart, this.area, this.line),
      el("div", { class: "arrow", "aria-hidden": "true" }),
      el("p", { class: "rate" }, this.rate, " records/s"),
      el(
        "dl",
        {},
        el("div", {}, el("dt", {}, "lag"), this.lag),
        el("div", {}, el("dt", { title: "High watermark minus last stable offset: held back by open transactions" }, "LSO lag"), this.held),
        el("div", {}, el("dt", { title: "From the raw record to the commit of what is written here, mean of the last seconds" }, "latency"), this.age),
      ),
    );
  }

  show(now) {
    const hop = now.hops[this.name];
    setText(this.rate, rate(hop.per_s));
    setText(this.lag, (hop.lag_with_markers ? "\u2264 " : "") + count(hop.lag));
    setText(this.held, count(hop.lso_lag));
    setText(this.age, hop.latency_s === null ? NONE : milliseconds(hop.latency_s * 1000));
    this.element.classList.toggle("flows", hop.per_s > 0);
    this.element.classList.toggle("lags", hop.lag > 0);
    this.draw(hop.per_s);
  }

  draw(perSecond) {
    this.points.push(perSecond || 0);
    if (this.points.length > POINTS) this.points.shift();
    const most = Math.max(...this.points, 1);
    const first = POINTS - this.points.length;
    const places = this.points.map((value, at) => {
      const x = ((first + at) * WIDTH) / (POINTS - 1);
      return x.toFixed(1) + "," + (HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1);
    });
    const begin = ((first * WIDTH) / (POINTS - 1)).toFixed(1);
    this.line.setAttribute("points", places.join(" "));
    this.area.setAttribute("points", [`${begin},${HEIGHT}`, ...places, `${WIDTH},${HEIGHT}`].join(" "));
  }
}

/** Draws the picture into a list, and returns what shows a snapshot in it. */
export const pipeline = (list) => {
  const parts = ORDER.map(([kind, name]) => (kind === "service" ? new Service(name) : new Topic(name)));
  list.replaceChildren(...parts.map((part) => part.element));
  return (now) => parts.forEach((part) => part.show(now));
};
