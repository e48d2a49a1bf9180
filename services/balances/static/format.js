// Numbers, money and times as text. What holds: money is never made a Number, so no digit is lost.

export const NONE = "\u2013";
const MINUS = "\u2212";
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const stamp = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

/** A counter of the snapshot; one that a restart may have cut short says so. */
export const counted = (counter) => (counter ? (counter.at_least ? "\u2265 " : "") + count(counter.value) : NONE);

/** Several counters as one. */
export const all = (counters) => ({
  value: Object.values(counters).reduce((sum, one) => sum + one.value, 0),
  at_least: Object.values(counters).some((one) => one.at_least),
});

export const rate = (perSecond) => {
  if (perSecond === null || perSecond === undefined) return NONE;
  return perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : whole.format(perSecond);
};

/** Minor units, a decimal string of any length, with the digits of the currency's minor unit. */
export const money = (minor, digits) => {
  const negative = minor.startsWith("-");
  const text = (negative ? minor.slice(1) : minor).padStart(digits + 1, "0");
  const units = text.slice(0, text.length - digits).replace(/\B(?=(\d{3})+$)/g, ",");
  return (negative ? MINUS : "") + units + (digits ? "." + text.slice(-digits) : "");
};

export const seconds = (value) => {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return value.toFixed(1) + " s";
  if (value < 120) return Math.round(value) + " s";
  if (value < 7200) return Math.round(value / 60) + " min";
  return Math.round(value / 3600) + " h";
};

export const milliseconds = (value) => (value < 1000 ? Math.round(value) + " ms" : seconds(value / 1000));

export const time = (ms) => clock.format(ms);
export const date = (ms) => stamp.format(ms);

export const plural = (number, one, many) => count(number) + " " + (number === 1 ? one : many);
