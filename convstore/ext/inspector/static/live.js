// Follow a conversation whose turn is not over: load the page again every two seconds and show what changed.
"use strict";

const place = document.getElementById("live");
const button = document.createElement("button");
let paused = false;

button.type = "button";
button.textContent = "Pause";
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Follow" : "Pause";
});
place.append(button);
place.querySelector("span").textContent = "Follows the turn";

// A reader who uses something on the page is not disturbed.
const isBusy = () => paused || document.hidden || document.querySelector("main :focus, main details.menu[open]");

async function follow() {
  if (!isBusy()) {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const before = document.querySelector("main");
    const after = page.querySelector("main");
    if (answer.ok && !isBusy() && before.textContent !== after.textContent) {
      before.replaceWith(document.importNode(after, true));
    }
    if (answer.ok && !page.getElementById("live")) {
      place.remove();
      return;
    }
  }
  setTimeout(follow, 2000);
}

setTimeout(() => follow().catch(() => place.remove()), 2000);
