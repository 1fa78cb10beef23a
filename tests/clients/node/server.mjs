// Server of the programs in this folder, and its expected answers.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

/** URL and the decoder's answers in another process, written by tests/clients/expected.py. */
export const { url, question, prompts, whole, branched, completed } = JSON.parse(
  readFileSync(process.env.EXPECTED, "utf8"),
);

export const talk = [{ role: "user", content: question }];

/** One token per step, and no end before the last token. */
export const LONG = { max_tokens: 1024, lopa: { strategy: "vanilla", stop_at_eos: false } };

/** Return the value of a metric, summed over its labels, or 0. */
export async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const found = [...text.matchAll(new RegExp(`^${name}\\{.* (\\S+)$`, "gm"))];
  return found.reduce((sum, line) => sum + Number(line[1]), 0);
}

/** Wait until `condition` is true, for at most a minute. */
export async function until(condition) {
  const end = Date.now() + 60_000;
  while (!(await condition())) {
    assert(Date.now() < end, "the condition never became true");
    await new Promise((wake) => setTimeout(wake, 20));
  }
}

/** Wait until exactly these numbers of requests run and wait. */
export async function untilBusy(running, waiting = 0) {
  await until(
    async () =>
      (await metric("lopa_requests_running")) === running && (await metric("lopa_requests_waiting")) === waiting,
  );
}
