// Answers of the bundle in the folder BUNDLE, for bundles that differ in their graphs.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { Decoder } from "../dist/index.js";

test("answers equal those of Python", async () => {
  const decoder = await Decoder.open(process.env.BUNDLE, { threads: 1 });
  for (const { prompt, options, token_ids } of JSON.parse(await readFile(process.env.EXPECTED, "utf8"))) {
    assert.deepEqual((await decoder.generate(prompt, options)).token_ids, token_ids, JSON.stringify(options));
  }
  await decoder.close();
});
