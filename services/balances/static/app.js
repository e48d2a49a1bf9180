// The page: one stream of snapshots, shown as they come. What holds: a page that does not hear from the view says so
// within two seconds, and goes on trying; what it shows then is marked as old.

import { find, setData, setSign, setText } from "./dom.js";
import { figures } from "./figures.js";
import { time } from "./format.js";
import { pipeline } from "./pipeline.js";
import { learn, search } from "./search.js";

const SILENT_MS = 2000; // a snapshot comes twice a second
const AGAIN_MS = 1500;
const DEAD_MS = 10000; // a connection that is open and says nothing: a new one

const SIGNS = { connecting: "unknown", live: "good", lost: "bad", paused: "unknown" };
const parts = [learn, pipeline(find("pipeline")), figures()];

let source = null;
let heard = performance.now();
let shown = null;
let timer = null;

const setStream = (state, text) => {
  setData(find("stream"), "state", state);
  setSign(find("stream"), SIGNS[state]);
  setText(find("stream").lastElementChild, text);
  document.body.classList.toggle("old", state === "lost");
};

const lose = (why) => {
  setStream("lost", "connection lost");
  setText(find("lost"), why + " Trying again. " + (shown === null ? "There are no figures yet." : "The figures are those of " + time(shown) + "."));
};

const take = (event) => {
  heard = performance.now();
  const now = JSON.parse(event.data);
  shown = now.at_ms;
  parts.forEach((show) => show(now));
  setText(find("lost"), "");
  setStream("live", "live \u00b7 " + time(now.at_ms));
};

const connect = () => {
  clearTimeout(timer);
  if (source) source.close();
  heard = performance.now();
  source = new EventSource("/events");
  source.addEventListener("message", take);
  source.addEventListener("error", () => {
    lose("The view cannot be reached.");
    if (source.readyState === EventSource.CLOSED) timer = setTimeout(connect, AGAIN_MS); // refused: no retry of its own
  });
};

const watch = () => {
  if (document.hidden || !source) return;
  const open = source.readyState === EventSource.OPEN;
  const silent = performance.now() - heard;
  if (silent > SILENT_MS) lose(open ? "The view has said nothing for " + Math.round(silent / 1000) + " s." : "The view cannot be reached.");
  if (open && silent > DEAD_MS) connect();
};

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  clearTimeout(timer);
  if (source) source.close(); // a hidden page costs the view nothing
  source = null;
  return setStream("paused", "paused");
});

search();
connect();
setInterval(watch, 500);
