// What the pages do in a browser; without it they show the same, by links and buttons.
"use strict";

const main = document.getElementById("main");
const tip = document.getElementById("tip");

// Times are written in the zone of the reader.
function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (!isNaN(moment)) {
      time.title = time.textContent;
      time.textContent = moment.toLocaleString(undefined, { timeZoneName: "short" });
    }
  }
}

// The main part of a page, as an element; null when the store's server is gone.
async function part(address, signal) {
  try {
    const answer = await fetch(address, { headers: { "x-part": "1" }, signal });
    const found = document.createElement("div");
    found.innerHTML = await answer.text();
    localize(found);
    return found;
  } catch (error) {
    if (error.name !== "AbortError") say("The server of this page does not answer.");
    return null;
  }
}

function say(text) {
  const live = document.getElementById("live");
  if (live) live.textContent = text;
}

// What is far down the page is asked for when it is seen.
function watch(root) {
  for (const place of root.querySelectorAll("[data-load]")) {
    new IntersectionObserver((seen, observer) => {
      if (!seen.some((one) => one.isIntersecting)) return;
      observer.disconnect();
      part(place.dataset.load).then((found) => found && place.replaceChildren(found));
    }).observe(place);
  }
  for (const place of root.querySelectorAll("details[data-load-in]")) {
    place.addEventListener("toggle", async () => {
      const found = await part(place.dataset.loadIn);
      if (found) place.replaceChildren(place.querySelector("summary"), found);
    }, { once: true });
  }
}

// A slider that moves plans anew; the answer to an older position is left.
function plans() {
  const form = document.getElementById("rescale");
  if (!form) return;
  let asked = new AbortController();
  form.addEventListener("input", async () => {
    form.querySelector("output").textContent = form.elements.parallelism.value;
    asked.abort();
    asked = new AbortController();
    const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
    const found = await part(address, asked.signal);
    const plan = found && found.querySelector("#plan");
    if (!plan) return found && say(found.textContent.trim());
    document.getElementById("plan").replaceWith(plan);
    history.replaceState(null, "", address);
    say("");
  });
}

// A new checkpoint is said, and the list of the newest ones is drawn anew.
function follow() {
  let known;
  setInterval(async () => {
    if (document.hidden) return;
    let id;
    try {
      id = (await (await fetch("/newest")).json()).id;
    } catch {
      return say("The server of this page does not answer.");
    }
    if (known !== undefined && id !== known) {
      say(`Checkpoint ${id} is new.`);
      if (main.dataset.tab === "timeline" && !location.search) {
        const found = await part("/");
        if (found) main.replaceChildren(...found.childNodes);
      }
    }
    known = id;
  }, 2000);
}

// What a mark of a picture stands for, under the pointer.
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest && event.target.closest("figure svg [aria-label]");
  const text = mark && mark.getAttribute("role") === "graphics-symbol" && mark.ariaLabel;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 16}px`;
});

// In a report all plans are there, and one is shown.
function chosen() {
  const box = document.querySelector("#restores select");
  if (!box) return;
  box.addEventListener("change", () => {
    for (const plan of document.querySelectorAll("[data-parallelism]")) {
      plan.hidden = plan.dataset.parallelism !== box.value;
    }
  });
}

localize(document);
watch(document);
plans();
chosen();
if (location.protocol !== "file:" && main.dataset.tab !== "report") follow();
