// The server that the programs beside this file talk to, and what it has to answer.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

/** What the decoder answered in another process, with the URL: written by tests/clients/expected.py. */
export const { url, question, prompts, whole, branched, completed } = JSON.parse(
  readFileSync(process.env.EXPECTED, "utf8"),
);

export const talk = [{ role: "user", content: question }];

/** A step a token, and no end before all are there. */
export const LONG = { max_tokens: 1024, lopa: { strategy: "vanilla", stop_at_eos: false } };

/** The value of a metric, summed over its labels; 0 for one that is not there. */
export async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const found = [...text.matchAll(new RegExp(`^${name}\\{.* (\\S+)$`, "gm"))];
  return found.reduce((sum, line) => sum + Number(line[1]), 0);
}

/** Wait until `happened` says so; a minute is too long. */
export async function until(happened) {
  const end = Date.now() + 60_000;
  while (!(await happened())) {
    assert(Date.now() < end, "it did not happen");
    await new Promise((wake) => setTimeout(wake, 20));
  }
}

/** Wait until so many requests run and so many wait. */
export async function untilBusy(running, waiting = 0) {
  await until(
    async () =>
      (await metric("lopa_requests_running")) === running && (await metric("lopa_requests_waiting")) === waiting,
  );
}
