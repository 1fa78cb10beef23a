// Print the seconds of forwards and of an answer on a device as JSON, for tools/reports/web.py.
//
//   node speed.mjs BUNDLE DEVICE TURNS TOKENS < SHAPES
//
// SHAPES is a JSON list of [branches, window, prefix].
import { readFileSync } from "node:fs";

import { Bundle } from "../dist/bundle/bundle.js";
import { Decoder } from "../dist/index.js";
import { openSession } from "../dist/sessions/onnxruntime_session.js";
import { secondsOf, secondsOfAnswers, secondsOfForwards } from "./timings.mjs";

const [folder, device, turns, tokens] = process.argv.slice(2);
const shapes = JSON.parse(readFileSync(0, "utf8"));

let session;
const opening = await secondsOf(async () => {
  session = await openSession(await Bundle.open(folder), undefined, device, 1);
});
const forwards = await secondsOfForwards(session, shapes, turns);
await session.close();
const decoder = await Decoder.open(folder, { device, threads: 1 });
const answers = await secondsOfAnswers(decoder, Number(tokens), turns);
await decoder.close();
console.log(JSON.stringify({ opening, forwards, ...answers }));
