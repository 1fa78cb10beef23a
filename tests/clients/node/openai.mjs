// Unmodified npm package openai against a server.

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

import { LONG, branched, completed, metric, prompts, question, talk, until, untilBusy, url, whole } from "./server.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const base = { model: "tiny", messages: talk, max_tokens: 64 };

test("models are listed and retrieved", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.deepEqual(models.map((model) => [model.id, model.object]), [["tiny", "model"]]);
  assert.deepEqual(await client.models.retrieve("tiny"), models[0]);
});

test("chat equals the decoder's answer", async () => {
  const answer = await client.chat.completions.create(base);
  const [choice] = answer.choices;
  assert.equal(choice.message.role, "assistant");
  assert.equal(choice.message.content, whole.text);
  assert.equal(choice.message.refusal, null);
  assert.equal(choice.finish_reason, whole.finish_reason);
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.usage.prompt_tokens, whole.prompt_tokens);
  assert.equal(answer.usage.completion_tokens, whole.tokens);
  assert.equal(answer.usage.total_tokens, whole.prompt_tokens + whole.tokens);
  assert.equal(answer.usage.lopa.steps, whole.steps);
  assert.match(answer._request_id, /^chatcmpl-/);
});

test("content in parts and the role developer", async () => {
  const parts = [question.slice(0, 9), question.slice(9)].map((text) => ({ type: "text", text }));
  const answer = await client.chat.completions.create({ ...base, messages: [{ role: "developer", content: parts }] });
  assert.equal(answer.choices[0].message.content, whole.text);
});

test("stream joins to the whole answer and ends with the usage", async () => {
  const chunks = [];
  const stream = await client.chat.completions.create({
    ...base,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) chunks.push(chunk);
  const last = chunks.pop();
  const own = chunks.map((chunk) => chunk.choices[0]);
  assert.deepEqual(own[0].delta, { role: "assistant", content: "" });
  assert.equal(own.map((choice) => choice.delta.content ?? "").join(""), whole.text);
  assert.deepEqual(
    own.map((choice) => choice.finish_reason),
    [...Array(own.length - 1).fill(null), whole.finish_reason],
  );
  assert(chunks.every((chunk) => chunk.usage === null && chunk.object === "chat.completion.chunk"));
  assert.equal(new Set([...chunks, last].map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.total_tokens, whole.prompt_tokens + whole.tokens);
});

test("the client's stream helper works", async () => {
  const stream = client.chat.completions.stream({ ...base, max_tokens: 128 });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.text);
  assert.equal(text, whole.text);
  assert.equal(final.choices[0].finish_reason, "stop");
});

test("text ends before a stop string", async () => {
  const stop = whole.text.slice(12, 18);
  const before = whole.text.slice(0, whole.text.indexOf(stop));
  const [choice] = (await client.chat.completions.create({ ...base, stop })).choices;
  assert.deepEqual([choice.message.content, choice.finish_reason], [before, "stop"]);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...base, stop: [stop], stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.equal(text, before);
});

test("lopa options change the steps, and drafts lead to the text", async () => {
  const lopa = { branches: 4 };
  const answer = await client.chat.completions.create({ ...base, lopa });
  assert.equal(answer.choices[0].message.content, branched.text);
  assert.equal(answer.usage.lopa.steps, branched.steps);
  const stream = await client.chat.completions.create({
    ...base,
    lopa,
    stream: true,
    stream_options: { include_drafts: true },
  });
  const drafts = [];
  let text = "";
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    text += choice.delta.content ?? "";
    if (choice.lopa?.draft !== undefined) {
      assert.deepEqual(choice.delta, {});
      assert(choice.lopa.draft.startsWith(text));
      drafts.push(choice.lopa);
    }
  }
  assert.equal(text, branched.text);
  assert(drafts.some((draft) => draft.draft.includes("░")));
  assert(drafts.some((draft) => draft.branches > 1));
});

test("choices of n have distinct seeds", async () => {
  const drawn = { ...base, temperature: 1, seed: 7, n: 2 };
  const [first, again] = [await client.chat.completions.create(drawn), await client.chat.completions.create(drawn)];
  assert.deepEqual(
    first.choices.map((choice) => [choice.index, choice.lopa.seed]),
    [
      [0, 7],
      [1, 8],
    ],
  );
  assert.deepEqual(
    first.choices.map((choice) => choice.message),
    again.choices.map((choice) => choice.message),
  );
});

test("one log-probability per token", async () => {
  const answer = await client.chat.completions.create({ ...base, logprobs: true });
  const { content } = answer.choices[0].logprobs;
  assert.equal(content.length, whole.tokens);
  assert(content.every((each) => each.logprob <= 0));
});

test("completions, whole and streamed", async () => {
  const body = { model: "tiny", prompt: prompts, max_tokens: 64 };
  const answer = await client.completions.create(body);
  assert.equal(answer.object, "text_completion");
  assert.deepEqual(
    answer.choices.map((choice) => [choice.index, choice.text, choice.finish_reason]),
    completed.map((each, index) => [index, each.text, each.finish_reason]),
  );
  const texts = completed.map(() => "");
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    texts[chunk.choices[0].index] += chunk.choices[0].text;
  }
  assert.deepEqual(
    texts,
    completed.map((each) => each.text),
  );
});

test("invalid requests give a BadRequestError that names the field", async () => {
  const tools = [{ type: "function", function: { name: "add", parameters: { type: "object", properties: {} } } }];
  const json = { type: "json_schema", json_schema: { name: "answer", schema: { not: {} } } };
  for (const [invalid, param] of [
    [{ temperature: -1 }, "temperature"],
    [{ max_tokens: 0 }, "max_tokens"],
    [{ tools }, "tools"],
    [{ response_format: json }, "response_format"],
    [{ messages: [] }, "messages"],
    [{ lopa: { brunches: 3 } }, "lopa.brunches"],
  ]) {
    for (const stream of [false, true]) {
      await assert.rejects(client.chat.completions.create({ ...base, ...invalid, stream }), (error) => {
        assert(error instanceof OpenAI.BadRequestError, String(error));
        assert.deepEqual([error.status, error.type, error.param], [400, "invalid_request_error", param]);
        assert.match(error.message, /expected/);
        return true;
      });
    }
  }
});

test("an unknown model gives a NotFoundError", async () => {
  const asks = [() => client.models.retrieve("other"), () => client.completions.create({ model: "other", prompt: "2" })];
  asks.push(() => client.chat.completions.create({ ...base, model: "other" }));
  for (const refused of asks) {
    await assert.rejects(refused, (error) => {
      assert(error instanceof OpenAI.NotFoundError, String(error));
      assert.equal(error.code, "model_not_found");
      return true;
    });
  }
});

test("a full queue gives a RateLimitError, and a retry gets its answer", async () => {
  await untilBusy(0);
  const controller = new AbortController();
  const streams = [];
  for (let count = 0; count < 8; count++) {
    const long = { ...base, ...LONG, stream: true };
    streams.push(await client.chat.completions.create(long, { signal: controller.signal }));
  }
  await untilBusy(4, 4);
  await assert.rejects(client.chat.completions.create(base), (error) => {
    assert(error instanceof OpenAI.RateLimitError, String(error));
    assert.deepEqual([error.type, error.code], ["rate_limit_error", "queue_full"]);
    assert(Number(error.headers.get("retry-after")) >= 1);
    return true;
  });
  const refused = await metric("lopa_rejected_total");
  const retrying = client.chat.completions.create(base, { maxRetries: 5 });
  await until(async () => (await metric("lopa_rejected_total")) > refused);
  controller.abort();
  assert.equal((await retrying).choices[0].message.content, whole.text);
  await untilBusy(0);
  assert.equal(streams.length, 8);
});

test("aborted streams and answers free their slots", async () => {
  await untilBusy(0);
  const [cancelled, steps] = [await metric("lopa_cancelled_total"), await metric("lopa_steps_total")];
  const stream = await client.chat.completions.create({ ...base, ...LONG, stream: true });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  await until(async () => (await metric("lopa_cancelled_total")) === cancelled + 1);
  const controller = new AbortController();
  const unread = client.chat.completions.create({ ...base, ...LONG }, { signal: controller.signal });
  await untilBusy(1);
  controller.abort();
  await assert.rejects(unread, OpenAI.APIUserAbortError);
  await until(async () => (await metric("lopa_cancelled_total")) === cancelled + 2);
  await untilBusy(0);
  assert((await metric("lopa_steps_total")) - steps < 2000, "fewer than all 2048 steps");
});
