// The script of a report: times in the reader's time zone, texts of marks, and the choice of a plan.
"use strict";

const tip = document.getElementById("tip");

for (const time of document.querySelectorAll("time[datetime]")) {
  const moment = new Date(time.dateTime);
  if (!isNaN(moment)) {
    time.title = time.textContent;
    time.textContent = moment.toLocaleString(undefined, { timeZoneName: "short" });
  }
}

document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest && event.target.closest("figure svg [aria-label]");
  const text = mark && mark.getAttribute("role") === "graphics-symbol" && mark.ariaLabel;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 16}px`;
});

const choice = document.querySelector("#restores select");
choice.addEventListener("change", () => {
  for (const plan of document.querySelectorAll("[data-parallelism]")) {
    plan.hidden = plan.dataset.parallelism !== choice.value;
  }
});
