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
const ready = loadAgainOnce().catch(() => {});

/* Return a promise of the source. It may be called again after a failure. `report` gets what is being loaded. */
let tries = 0;
globalThis.openLopaSource = async (report) => {
  await ready;
  report("Loading the page's modules ...");
  const module = await import(`./source.js${tries++ ? `?${tries}` : ""}`).catch((error) => {
    throw new UserError(`A module of this page cannot be loaded (${error.message}).
Expected: all files that lopa-export page wrote, and a network.
What to do: press Run again. If that fails too, reload the page, or write its folder again.`);
  });
  return module.open(report);
};
