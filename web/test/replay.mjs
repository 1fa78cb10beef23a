// Decode token ids by recorded options and print every step, for tests/web/replayed.py.
//
//   node replay.mjs BUNDLE DEVICE < REQUESTS
//
// Each line of REQUESTS is {"prompt": ids, "options": {...}, "eos": id}. Each line of the output is the decode of a
// prompt.
import { createInterface } from "node:readline";

import { openBundle } from "../dist/bundle/bundle.js";
import { openFolder } from "../dist/bundle/folder.js";
import { importRuntime } from "../dist/node_decoder.js";
import { openSession } from "../dist/sessions/onnxruntime_session.js";
import { decodeWithSteps } from "./decode_with_steps.mjs";

const [folder, device] = process.argv.slice(2);
const bundle = await openBundle(folder, openFolder);
const session = await openSession(bundle, () => importRuntime(device), device, 1);
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await decodeWithSteps(session, bundle.manifest, JSON.parse(line))));
}
await session.close();
