// Parts of the loop in states that decodes of the tiny bundle rarely reach.
import assert from "node:assert/strict";
import { test } from "node:test";

import { reorderedInt4, reorderedInt8 } from "../dist/bundle/webgpu_twin.js";
import { RowStatistics, checkStatistics } from "../dist/contract/row_statistics.js";
import { candidatesFromRows } from "../dist/decoding/candidates.js";
import { EngineFailedError, NonFiniteAnswerError } from "../dist/index.js";
import { Session } from "../dist/sessions/session.js";
import { indicesOfTopk } from "../dist/strategy/topk_ties.js";

const MASK = 2;

function rowsOf(ids, probabilities) {
  return new RowStatistics(Int32Array.from(ids), Float32Array.from(probabilities, Math.log), Float32Array.of(1), null);
}

function params(options) {
  return { confidence: "margin", temperature: 0, filters: false, top_k: 8, top_p: 1, reference: false, ...options };
}

test("the mask token is never proposed, except in reference mode", () => {
  const rows = rowsOf([MASK, 7, 8, 9, 10, 11, 12, 13], [0.6, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01]);
  const propose = (reference) => candidatesFromRows(rows, [5], { params: params({ reference }), maskToken: MASK }, 1);
  const found = propose(false);
  assert.deepEqual(found.tokens, [7]);
  assert.ok(Math.abs(found.probabilities[0] - 0.2) < 1e-6);
  assert.ok(Math.abs(found.confidences[0] - 0.1) < 1e-6);
  assert.deepEqual(propose(true).tokens, [MASK]);

  // a graph that returns the mask token twice, or for all candidates
  rows.ids.set([7, MASK, MASK], 1);
  rows.ids[1] = MASK;
  assert.deepEqual(propose(false).tokens, [10]);
  rows.ids.fill(MASK);
  assert.throws(() => propose(false), (error) => {
    assert.ok(error instanceof NonFiniteAnswerError);
    assert.match(error.received, /no token that can be written at position 5/);
    return true;
  });
  assert.deepEqual(propose(true).tokens, [MASK]);
});

test("statistics that are not finite are rejected", () => {
  const ids = [1, 2, 3, 4, 5, 6, 7, 8];
  const usual = [0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02, 0];
  checkStatistics(rowsOf(ids, usual), 9, "cpu", 1);
  assert.throws(() => checkStatistics(rowsOf(ids, usual), 8, "cpu", 1), NonFiniteAnswerError);
  assert.throws(() => checkStatistics(rowsOf(ids, [0, ...usual.slice(1)]), 9, "cpu", 1), NonFiniteAnswerError);
  assert.throws(() => checkStatistics(rowsOf(ids, [NaN, ...usual.slice(1)]), 9, "cpu", 1), NonFiniteAnswerError);
});

test("forwards of several requests take turns, and a failure affects one request", async () => {
  let running = 0;
  const graph = {
    request: () => ({
      forward: async (windows) => {
        assert.equal(running++, 0);
        await new Promise((resolve) => setTimeout(resolve, 5));
        running -= 1;
        if (windows === "broken") throw new Error("out of memory");
        return windows;
      },
    }),
  };
  const session = new Session("wasm", graph);
  const results = await Promise.allSettled(["a", "broken", "b"].map((each) => session.request().forward(each, 1)));
  assert.deepEqual([results[0].value, results[2].value], ["a", "b"]);
  assert.ok(results[1].reason instanceof EngineFailedError);
  assert.match(results[1].reason.received, /wasm failed: out of memory/);
});

test("equal values are chosen as by Python", () => {
  const low = -Infinity;
  for (const { values, count, indices } of JSON.parse(process.env.TOPK)) {
    const found = indicesOfTopk(
      values.map((value) => value ?? low),
      count,
    );
    assert.deepEqual(found.sort((one, other) => one - other), indices);
  }
});

test("matrices in the order of MatMulNBits have every number", () => {
  const [inputs, outputs] = [64, 3];
  const stored = Uint8Array.from({ length: inputs * outputs }, (_, index) => (index * 37 + (index >> 5)) % 256);
  const eight = reorderedInt8(stored, inputs, outputs);
  const four = reorderedInt4(stored.subarray(0, stored.length / 2), inputs, outputs);
  const signed = (value, bits) => (value << (32 - bits)) >> (32 - bits);
  for (let input = 0; input < inputs; input++) {
    for (let output = 0; output < outputs; output++) {
      const index = input * outputs + output;
      const place = output * inputs + input;
      assert.equal(eight[place] - 128, signed(stored[index], 8));
      const number = ((four[place >> 1] >> (4 * (place % 2))) & 15) - 8;
      assert.equal(number, signed(stored[index >> 1] >> (4 * (index % 2)), 4));
    }
  }
});
