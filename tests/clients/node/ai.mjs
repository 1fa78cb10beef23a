// Unmodified npm package ai with @ai-sdk/openai-compatible against a server.

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, streamText, tool } from "ai";

import { LONG, branched, metric, question, talk, until, untilBusy, url, whole } from "./server.mjs";

const settings = { name: "lopa", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true };
const provider = createOpenAICompatible(settings);
const base = { model: provider("tiny"), messages: talk, maxOutputTokens: 64, maxRetries: 0 };

function tokens(usage) {
  return [usage.inputTokens, usage.outputTokens];
}

test("text equals the decoder's answer", async () => {
  const answer = await generateText(base);
  assert.equal(answer.text, whole.text);
  assert.equal(answer.finishReason, whole.finish_reason);
  assert.deepEqual(tokens(answer.usage), [whole.prompt_tokens, whole.tokens]);
  assert.equal(answer.response.modelId, "tiny");
  assert.deepEqual(answer.warnings ?? [], []);
});

test("a prompt becomes a chat of one message", async () => {
  const { messages, ...rest } = base;
  assert.equal((await generateText({ ...rest, prompt: question })).text, whole.text);
});

test("stream joins to the whole answer and ends with the usage", async () => {
  const answer = streamText(base);
  let text = "";
  for await (const part of answer.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal(await answer.finishReason, whole.finish_reason);
  assert.deepEqual(tokens(await answer.usage), [whole.prompt_tokens, whole.tokens]);
});

test("lopa options in the provider's options", async () => {
  const answer = await generateText({ ...base, providerOptions: { lopa: { lopa: { branches: 4 } } } });
  assert.equal(answer.text, branched.text);
  assert.equal(answer.usage.raw.lopa.steps, branched.steps);
});

test("drafts are in the raw chunks", async () => {
  const drafting = createOpenAICompatible({
    ...settings,
    transformRequestBody: (body) => ({ ...body, stream_options: { include_usage: true, include_drafts: true } }),
  });
  const answer = streamText({
    ...base,
    model: drafting("tiny"),
    includeRawChunks: true,
    providerOptions: { lopa: { lopa: { branches: 4 } } },
  });
  const drafts = [];
  let text = "";
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") text += part.text;
    if (part.type === "raw") drafts.push(part.rawValue.choices[0]?.lopa?.draft);
  }
  assert.equal(text, branched.text);
  assert(drafts.some((draft) => draft?.includes("░")));
});

test("completions, whole and streamed", async () => {
  const body = { ...base, model: provider.completionModel("tiny"), messages: undefined, prompt: question };
  // For a text model the library writes the chat as text itself, and stops at "user:".
  const answer = await generateText(body);
  const streamed = streamText(body);
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, answer.text);
  assert.equal(await streamed.finishReason, answer.finishReason);
  assert.deepEqual(tokens(await streamed.usage), tokens(answer.usage));
  assert.match(answer.response.id, /^cmpl-/);
});

test("invalid requests give an APICallError that names the field, without retries", async () => {
  const tools = { add: tool({ description: "adds", inputSchema: jsonSchema({ type: "object", properties: {} }) }) };
  const invalidRequests = [
    [{ temperature: -1 }, "temperature"],
    [{ tools }, "tools"],
    [{ providerOptions: { lopa: { lopa: { brunches: 3 } } } }, "lopa.brunches"],
  ];
  for (const [invalid, param] of invalidRequests) {
    await assert.rejects(generateText({ ...base, ...invalid, maxRetries: 2 }), (error) => {
      assert(APICallError.isInstance(error), String(error));
      assert.deepEqual([error.statusCode, error.isRetryable, error.data.error.param], [400, false, param]);
      assert.match(error.message, /expected/);
      return true;
    });
  }
});

test("an unknown model gives an APICallError with status 404", async () => {
  await assert.rejects(generateText({ ...base, model: provider("other") }), (error) => {
    assert.deepEqual([error.statusCode, error.data.error.code], [404, "model_not_found"]);
    return true;
  });
});

test("a full queue is retried", async () => {
  await untilBusy(0);
  const controller = new AbortController();
  const long = { ...base, maxOutputTokens: LONG.max_tokens, providerOptions: { lopa: { lopa: LONG.lopa } } };
  const aborted = [];
  for (let count = 1; count <= 8; count++) {
    aborted.push(generateText({ ...long, abortSignal: controller.signal }).catch((error) => error));
    await untilBusy(Math.min(count, 4), Math.max(0, count - 4));
  }
  await assert.rejects(generateText(base), (error) => {
    assert.deepEqual([error.statusCode, error.isRetryable], [429, true]);
    return true;
  });
  const refused = await metric("lopa_rejected_total");
  const retrying = generateText({ ...base, maxRetries: 4 });
  await until(async () => (await metric("lopa_rejected_total")) > refused);
  controller.abort();
  assert.equal((await retrying).text, whole.text);
  for (const error of await Promise.all(aborted)) assert.equal(error.name, "AbortError");
  await untilBusy(0);
});

test("an aborted stream frees its slot", async () => {
  await untilBusy(0);
  const [cancelled, steps] = [await metric("lopa_cancelled_total"), await metric("lopa_steps_total")];
  const controller = new AbortController();
  const answer = streamText({
    ...base,
    maxOutputTokens: LONG.max_tokens,
    providerOptions: { lopa: { lopa: LONG.lopa } },
    abortSignal: controller.signal,
  });
  for await (const part of answer.fullStream) if (part.type === "text-delta") controller.abort();
  await until(async () => (await metric("lopa_cancelled_total")) === cancelled + 1);
  await untilBusy(0);
  assert((await metric("lopa_steps_total")) - steps < 1000, "fewer than all 1024 steps");
});
