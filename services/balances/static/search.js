// The search for an account or a payment, over the JSON API. The address keeps what is shown: #account=alice, #payment=x.

import { el, find, setText, sign } from "./dom.js";
import { NONE, count, date, milliseconds, money, plural } from "./format.js";

const PAGE = 25;
const STATUSES = {
  completed: ["good", "completed"],
  debited: ["warn", "debited, the credit is under way"],
  credited: ["warn", "credited, the debit is not read yet"],
  reversed: ["warn", "reversed"],
  declined: ["bad", "declined"],
  opened: ["good", "opened"],
};

const KNOWN_MS = 3000;

/** Digits of each currency's minor unit, as snapshots have them; filled by `learn`. */
const digits = new Map();
let ready;
const known = new Promise((resolve) => (ready = resolve));

export const learn = (now) => {
  for (const one of now.view ? now.view.currencies : []) digits.set(one.currency, one.digits);
  if (digits.size) ready();
};

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const amount = (minor, currency) => {
  if (digits.has(currency)) return money(minor, digits.get(currency)) + " " + currency;
  return money(minor, 0) + " minor units " + currency;
};

class Refused extends Error {}

const ask = async (path) => {
  let answer;
  try {
    answer = await fetch(path, { headers: { Accept: "application/json" } });
  } catch {
    throw new Refused("The view does not answer. Try again when the page is live.");
  }
  const body = await answer.json().catch(() => ({ detail: "The answer was no JSON (status " + answer.status + ")." }));
  if (!answer.ok) throw new Refused(body.detail);
  return body;
};

const link = (kind, name) => el("a", { href: "#" + kind + "=" + encodeURIComponent(name), class: "name" }, name);

const behind = (positions) => {
  const worst = Math.max(...positions.map((one) => (one.seconds_behind === null ? Infinity : one.seconds_behind)));
  return worst === Infinity ? "how old this is, the brokers do not say" : "at most " + milliseconds(worst * 1000) + " old";
};

const entryRow = (entry) => {
  const cells = [
    ["posted", "", el("time", { datetime: new Date(entry.timestamp_ms).toISOString() }, date(entry.timestamp_ms))],
    ["payment", "", link("payment", entry.payment_id)],
    ["counterparty", "", link("account", entry.counterparty)],
    ["reference", "", el("span", {}, entry.reference || (entry.reversal ? "reversal" : NONE))],
    ["amount", "number", el("span", { class: entry.amount_minor.startsWith("-") ? "left" : "came" }, amount(entry.amount_minor, entry.currency))],
    ["balance", "number", el("span", {}, amount(entry.balance_minor, entry.currency))],
  ];
  return el("tr", { role: "row" }, ...cells.map(([label, kind, child]) => el("td", { role: "cell", class: kind, "data-label": label }, child)));
};

const entriesTable = () => {
  const heads = ["posted", "payment", "counterparty", "reference", "amount", "balance"];
  const body = el("tbody", { role: "rowgroup" });
  const head = el("tr", { role: "row" }, ...heads.map((text) => el("th", { scope: "col", role: "columnheader", class: text === "amount" || text === "balance" ? "number" : "" }, text)));
  const table = el("table", { class: "stacks", role: "table" }, el("caption", {}, "Entries, newest first"), el("thead", { role: "rowgroup" }, head), body);
  return { table, body };
};

const showAccount = async (name, box) => {
  const path = "/api/accounts/" + encodeURIComponent(name);
  const [account, page] = await Promise.all([ask(path), ask(path + "/entries?limit=" + PAGE)]);
  const terms = [
    account.closed ? "closed" : "open",
    account.overdraft_minor === null ? "no limit" : "overdraft " + (account.overdraft_minor === "0" ? "none" : money(account.overdraft_minor, 0) + " minor units of each currency"),
    "owner " + account.owner + ", version " + account.version,
    "partition " + account.partition,
    behind(account.as_of),
  ];
  const balances = account.balances.map((one) =>
    el("div", { class: "tile" }, el("dt", {}, one.currency), el("dd", {}, el("span", { class: "value", "data-balance": one.currency }, amount(one.balance_minor, one.currency)), el("span", { class: "dim" }, plural(one.postings, "posting", "postings")))),
  );
  const { table, body } = entriesTable();
  const more = el("button", { type: "button", class: "more" }, "Older entries");
  let next = null;
  const add = (found) => {
    body.append(...found.entries.map(entryRow));
    next = found.next;
    more.hidden = next === null;
  };
  more.addEventListener("click", async () => {
    more.disabled = true;
    try {
      const found = await ask(path + "/entries?limit=" + PAGE + "&after=" + encodeURIComponent(next));
      add(found);
      if (box.isConnected) say(plural(found.entries.length, "older entry", "older entries") + " added, " + count(body.children.length) + " shown");
    } catch (error) {
      if (box.isConnected) refuse(error);
    }
    more.disabled = false;
  });
  add(page);
  box.replaceChildren(
    el("h3", {}, "Account ", el("span", { class: "name" }, account.account)),
    el("p", { class: "dim" }, terms.join(" \u00b7 ")),
    balances.length ? el("dl", { class: "tiles" }, ...balances) : el("p", {}, "No postings yet."),
    table,
    more,
  );
  return "Account " + account.account + ": " + plural(account.balances.length, "balance", "balances") + ", " + plural(page.entries.length, "entry", "entries") + " shown";
};

const step = (one, before) => {
  const lasted = before && one.timestamp_ms !== null && before.timestamp_ms !== null ? one.timestamp_ms - before.timestamp_ms : null;
  const at = one.timestamp_ms === null ? "not there, or not committed" : date(one.timestamp_ms);
  return el(
    "li",
    { "data-step": one.at, "data-found": one.found },
    el("p", {}, el("b", {}, one.what), lasted !== null && lasted >= 0 ? el("span", { class: "dim" }, " +" + milliseconds(lasted)) : null),
    el("p", { class: "name" }, one.topic, el("wbr"), ":" + one.partition + ":" + one.offset),
    el("p", { class: "dim" }, at),
  );
};

const way = (found) => {
  const first = found.steps[0];
  const by = new Map(found.steps.map((one) => [one.at, one]));
  const last = found.steps[found.steps.length - 1];
  const whole = last.timestamp_ms !== null && first.timestamp_ms !== null ? last.timestamp_ms - first.timestamp_ms : null;
  return [
    el("h4", {}, "Way through the topics"),
    el("p", { class: "dim" }, plural(found.steps.length, "record", "records") + (whole === null ? "" : ", " + milliseconds(Math.max(whole, 0)) + " from the first to the last") + ". Each names the one that it was made from."),
    el("ol", { class: "way" }, ...found.steps.map((one) => step(one, by.get(one.source)))),
  ];
};

const line = (one) => el("li", {}, link("account", one.account), " ", el("span", { class: "number" }, amount(one.amount_minor, one.currency)));

/** What a debtor pays, fee included, is in one currency: that of the debit leg's first line. */
const paidIn = (one) => one.events[0].lines[0].currency;

const payment = (one) => {
  const [kind, word] = STATUSES[one.status];
  const facts = [
    ["from", link("account", one.debtor)],
    ["to", one.creditor ? link("account", one.creditor) : NONE],
    ["value date", one.value_date],
    ["fee", one.fee_minor === "0" ? "none" : amount(one.fee_minor, paidIn(one))],
    ["rate", one.rate || "no conversion"],
    ["reference", one.reference || NONE],
    ["client", one.client === null ? NONE : one.client + (one.key_id ? ", key " + one.key_id : "")],
  ];
  if (one.reason) facts.unshift(["reason", one.reason.replaceAll("_", " ")]);
  if (one.reverses) facts.push(["reverses", link("payment", one.reverses)]);
  if (one.reversed_by) facts.push(["reversed by", link("payment", one.reversed_by)]);
  const legs = one.events.map((event) => el("div", {}, el("h4", {}, event.kind + " ", el("span", { class: "name dim" }, event.at)), el("ul", { class: "lines" }, ...event.lines.map(line))));
  return el(
    "article",
    { class: "payment", "data-status": one.status },
    el("h3", {}, one.reversal ? "Reversal " : "Payment ", el("span", { class: "name" }, one.payment_id)),
    el("p", { class: "state" }, sign(kind), el("b", {}, word)),
    el("dl", { class: "facts" }, ...facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))),
    el("div", { class: "legs" }, ...legs),
    el("div", { "data-way": one.debtor }, el("p", { class: "dim" }, "Looking up its way through the topics\u2026")),
  );
};

/** Puts the ways where they belong, when they are found: that takes longer than to find the payments. */
const showWays = async (asked, box) => {
  let found = [];
  let failed = "";
  try {
    found = (await asked).ways;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    failed = error.message;
  }
  for (const place of box.querySelectorAll("[data-way]")) {
    const mine = found.find((one) => one.debtor === place.dataset.way);
    place.replaceChildren(...(mine ? way(mine) : [el("p", { class: "dim" }, "Its way cannot be shown. " + failed)]));
  }
};

const showPayment = async (name, box) => {
  const path = "/api/payments/" + encodeURIComponent(name);
  const found = await ask(path);
  box.replaceChildren(...found.payments.map(payment), found.more ? el("p", {}, "There are others with this payment_id.") : "");
  showWays(ask(path + "/way"), box);
  return plural(found.payments.length, "payment", "payments") + " with this payment_id: " + found.payments.map((one) => one.status).join(", ");
};

/** Each fills the box, and returns what to say of it. */
const KINDS = { account: showAccount, payment: showPayment };
let asked = 0;

const say = (text) => {
  find("said").classList.remove("refused");
  setText(find("said"), text);
};

const refuse = (error) => {
  if (!(error instanceof Refused)) throw error;
  find("said").classList.add("refused");
  setText(find("said"), error.message);
};

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Refused("The address names nothing that can be read: " + text + " is not UTF-8, percent-encoded.");
  }
};

const show = async () => {
  const [kind, text] = location.hash.slice(1).split("=", 2);
  if (!Object.hasOwn(KINDS, kind) || !text) return;
  const mine = ++asked;
  const box = el("div");
  try {
    const name = decoded(text);
    find(kind).value = name;
    say("Looking for " + kind + " " + name);
    await Promise.race([known, wait(KNOWN_MS)]); // an address that is opened asks before the first snapshot is there
    const result = await KINDS[kind](name, box);
    if (mine !== asked) return;
    find("found").replaceChildren(box);
    say(result);
  } catch (error) {
    if (mine !== asked) return;
    find("found").replaceChildren();
    refuse(error);
  }
};

/** Wires the forms, and shows what the address asks for. */
export const search = () => {
  for (const kind of Object.keys(KINDS)) {
    find(kind + "-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const wanted = "#" + kind + "=" + encodeURIComponent(find(kind).value.trim());
      if (location.hash === wanted) show();
      else location.hash = wanted;
    });
  }
  addEventListener("hashchange", show);
  show();
};
