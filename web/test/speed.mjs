// Print the seconds of forwards and of an answer on a device as JSON, for tools/reports/web.py.
//
//   node speed.mjs BUNDLE DEVICE TURNS < SHAPES
//
// SHAPES is a JSON list of [branches, window, prefix].
import { readFileSync } from "node:fs";

import { Bundle } from "../dist/bundle/bundle.js";
import { Decoder } from "../dist/index.js";
import { openSession } from "../dist/sessions/onnxruntime_session.js";

const [folder, device, turns] = process.argv.slice(2);
const shapes = JSON.parse(readFileSync(0, "utf8"));

function windowsOf(branches, width, prefix) {
  const rows = branches * width;
  return {
    branches,
    width,
    queries: width,
    inputIds: Int32Array.from({ length: rows }, (_, row) => 4 + ((row * 31) % 900)),
    positions: Int32Array.from({ length: rows }, (_, row) => prefix + (row % width)),
    mask: new Uint8Array(rows * width).fill(1),
    logitsIndex: Int32Array.from({ length: rows }, (_, row) => row % width),
  };
}

async function secondsOf(task) {
  const began = performance.now();
  await task();
  return (performance.now() - began) / 1000;
}

let bundle, session;
const opening = await secondsOf(async () => {
  bundle = await Bundle.open(folder);
  session = await openSession(bundle, undefined, device, 1);
});
const forwards = [];
for (const [branches, width, prefix] of shapes) {
  const request = session.request();
  await request.forward(windowsOf(1, prefix, 0), 1);
  await request.commit(0, prefix);
  const windows = windowsOf(branches, width, prefix);
  await request.forward(windows, 1);
  const seconds = [];
  for (let turn = 0; turn < turns; turn++) seconds.push(await secondsOf(() => request.forward(windows, 1)));
  forwards.push(seconds);
}
await session.close();
const decoder = await Decoder.open(folder, { device, threads: 1 });
const answers = [];
let tokens = 0;
for (let turn = 0; turn <= turns; turn++) {
  const result = await decoder.generate("Tom has 3 apples. He buys 4 more.", { max_new_tokens: 128, stop_at_eos: false });
  tokens = result.tokens;
  if (turn > 0) answers.push(result.seconds);
}
await decoder.close();
console.log(JSON.stringify({ opening, forwards, answers, tokens }));
