/* Opens the page's source of answers, source.js. The first visit loads the page again, so that its service worker adds
   headers (service_worker.js). */
"use strict";
const WORKER_SECONDS = 5; // some browsers never say that they refused a service worker

async function loadAgainOnce() {
  const worker = navigator.serviceWorker;
  if (crossOriginIsolated || !worker || worker.controller || sessionStorage.loadedAgain) return;
  const late = new Promise((_, stop) => setTimeout(stop, 1000 * WORKER_SECONDS));
  await Promise.race([worker.register("service_worker.js").then(() => worker.ready), late]);
  sessionStorage.loadedAgain = true;
  location.reload();
  await new Promise(() => {});
}

/* Without a service worker, or without storage, the page works with one thread. */
const whenReady = loadAgainOnce().catch(() => {});

/* Return a promise of the source. `report` gets what is being loaded. Browsers and ONNX Runtime keep a failure until the
   page is loaded again, so the call after a failure loads it, with the prompt and the options in its address. */
let openingFailed = false;
globalThis.openLopaSource = async (report) => {
  await whenReady;
  try {
    if (openingFailed) await loadAgainAndRun();
    report("Loading the modules of this page.");
    const module = await import("./source.js").catch((error) => {
      throw new UserError(`A module of this page cannot be loaded (${error.message}).
Expected: all files that lopa-export page wrote.
What to do: check the network, and press Run again. If that fails too, write the page's folder again.`);
    });
    return await module.open(report);
  } catch (error) {
    openingFailed = true;
    throw error;
  }
};

async function loadAgainAndRun() {
  await fetch("start.js", { cache: "no-store" }).catch(() => {
    throw new UserError("The host of this page cannot be reached.\nWhat to do: check the network, and press Run again.");
  });
  putLink();
  sessionStorage.runAgain = true;
  location.reload();
  await new Promise(() => {});
}

try {
  if (sessionStorage.runAgain) addEventListener("load", () => byId("form").requestSubmit());
  delete sessionStorage.runAgain;
} catch {
  // without storage the user presses Run once more
}
