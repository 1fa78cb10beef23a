// npm's ai with @ai-sdk/openai-compatible, unmodified, against a server.

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, streamText, tool } from "ai";

import { LONG, branched, metric, question, talk, until, untilBusy, url, whole } from "./server.mjs";

const settings = { name: "lopa", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true };
const provider = createOpenAICompatible(settings);
const asked = { model: provider("tiny"), messages: talk, maxOutputTokens: 64, maxRetries: 0 };

function tokens(usage) {
  return [usage.inputTokens, usage.outputTokens];
}

test("a text is what the decoder answers", async () => {
  const answer = await generateText(asked);
  assert.equal(answer.text, whole.text);
  assert.equal(answer.finishReason, whole.finish_reason);
  assert.deepEqual(tokens(answer.usage), [whole.prompt_tokens, whole.tokens]);
  assert.equal(answer.response.modelId, "tiny");
  assert.deepEqual(answer.warnings ?? [], []);
});

test("a prompt alone is a chat of one message", async () => {
  const { messages, ...rest } = asked;
  assert.equal((await generateText({ ...rest, prompt: question })).text, whole.text);
});

test("a stream joins to the whole answer, and ends with the usage", async () => {
  const answer = streamText(asked);
  let text = "";
  for await (const part of answer.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal(await answer.finishReason, whole.finish_reason);
  assert.deepEqual(tokens(await answer.usage), [whole.prompt_tokens, whole.tokens]);
});

test("options of lopa go through the provider's options", async () => {
  const answer = await generateText({ ...asked, providerOptions: { lopa: { lopa: { branches: 4 } } } });
  assert.equal(answer.text, branched.text);
  assert.equal(answer.usage.raw.lopa.steps, branched.steps);
});

test("drafts are in the raw chunks", async () => {
  const drafting = createOpenAICompatible({
    ...settings,
    transformRequestBody: (body) => ({ ...body, stream_options: { include_usage: true, include_drafts: true } }),
  });
  const answer = streamText({
    ...asked,
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
  const body = { ...asked, model: provider.completionModel("tiny"), messages: undefined, prompt: question };
  // For a text model the library itself writes the chat as text, and stops at "user:".
  const answer = await generateText(body);
  const streamed = streamText(body);
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, answer.text);
  assert.equal(await streamed.finishReason, answer.finishReason);
  assert.deepEqual(tokens(await streamed.usage), tokens(answer.usage));
  assert.match(answer.response.id, /^cmpl-/);
});

test("what cannot be done is an APICallError that names the field, and is not tried again", async () => {
  const tools = { add: tool({ description: "adds", inputSchema: jsonSchema({ type: "object", properties: {} }) }) };
  const wrongs = [
    [{ temperature: -1 }, "temperature"],
    [{ tools }, "tools"],
    [{ providerOptions: { lopa: { lopa: { brunches: 3 } } } }, "lopa.brunches"],
  ];
  for (const [wrong, param] of wrongs) {
    await assert.rejects(generateText({ ...asked, ...wrong, maxRetries: 2 }), (error) => {
      assert(APICallError.isInstance(error), String(error));
      assert.deepEqual([error.statusCode, error.isRetryable, error.data.error.param], [400, false, param]);
      assert.match(error.message, /expected/);
      return true;
    });
  }
});

test("an unknown model is an APICallError of status 404", async () => {
  await assert.rejects(generateText({ ...asked, model: provider("other") }), (error) => {
    assert.deepEqual([error.statusCode, error.data.error.code], [404, "model_not_found"]);
    return true;
  });
});

test("a full queue may be tried again, and is", async () => {
  await untilBusy(0);
  const leaving = new AbortController();
  const long = { ...asked, maxOutputTokens: LONG.max_tokens, providerOptions: { lopa: { lopa: LONG.lopa } } };
  const left = [];
  for (let count = 1; count <= 8; count++) {
    left.push(generateText({ ...long, abortSignal: leaving.signal }).catch((error) => error));
    await untilBusy(Math.min(count, 4), Math.max(0, count - 4));
  }
  await assert.rejects(generateText(asked), (error) => {
    assert.deepEqual([error.statusCode, error.isRetryable], [429, true]);
    return true;
  });
  const refused = await metric("lopa_rejected_total");
  const patient = generateText({ ...asked, maxRetries: 4 });
  await until(async () => (await metric("lopa_rejected_total")) > refused);
  leaving.abort();
  assert.equal((await patient).text, whole.text);
  for (const error of await Promise.all(left)) assert.equal(error.name, "AbortError");
  await untilBusy(0);
});

test("a stream that is left frees its slot", async () => {
  await untilBusy(0);
  const [cancelled, steps] = [await metric("lopa_cancelled_total"), await metric("lopa_steps_total")];
  const leaving = new AbortController();
  const answer = streamText({
    ...asked,
    maxOutputTokens: LONG.max_tokens,
    providerOptions: { lopa: { lopa: LONG.lopa } },
    abortSignal: leaving.signal,
  });
  for await (const part of answer.fullStream) if (part.type === "text-delta") leaving.abort();
  await until(async () => (await metric("lopa_cancelled_total")) === cancelled + 1);
  await untilBusy(0);
  assert((await metric("lopa_steps_total")) - steps < 1000, "of 1024");
});
