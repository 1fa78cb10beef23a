// Unmodified npm package @anthropic-ai/sdk against a server.

import assert from "node:assert/strict";
import test from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

import { talk, url } from "./server.mjs";
import { calculate, calculation, nothing } from "./tools.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const base = { model: "tiny", messages: talk, max_tokens: 80, thinking: { type: "disabled" } };
const tools = [
  { name: "calculate", description: "adds", input_schema: calculation },
  { name: "now", input_schema: nothing },
];

const withoutIds = (message) => message.content.map(({ id, ...block }) => block);

test("messages, whole and streamed", async () => {
  const whole = await client.messages.create(base);
  assert.deepEqual([whole.type, whole.role, whole.model], ["message", "assistant", "tiny"]);
  const stream = client.messages.stream(base);
  let text = "";
  stream.on("text", (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.deepEqual(withoutIds(final), withoutIds(whole));
  assert.equal(text, whole.content[0].text);
  const end = ({ stop_reason, stop_sequence, usage }) => [stop_reason, stop_sequence, usage.output_tokens];
  assert.deepEqual(end(final), end(whole));
});

test("lopa options are a field of the body", async () => {
  const answer = await client.messages.create({ ...base, lopa: { branches: 4 } });
  assert.equal(answer.lopa.branches, 4);
});

test("events come in Anthropic's order, with every field", async () => {
  const kinds = [];
  for await (const event of await client.messages.create({ ...base, tools, tool_choice: { type: "any" }, stream: true })) {
    kinds.push(event.type);
    if (event.type === "message_start") assert.deepEqual([event.message.type, event.message.content], ["message", []]);
    if (event.type === "content_block_start") assert.deepEqual(event.content_block.input, {});
    if (event.type === "message_delta") assert.equal(event.delta.stop_reason, "tool_use");
  }
  assert.deepEqual([kinds[0], ...kinds.slice(-2)], ["message_start", "message_delta", "message_stop"]);
  const blocks = kinds.slice(1, -2);
  assert.deepEqual(blocks.slice(0, 3), ["content_block_start", "content_block_delta", "content_block_stop"]);
  assert.equal(blocks.length % 3, 0);
});

test("tools are called, whole and streamed, and results go back", async () => {
  for (const tool_choice of [{ type: "any" }, { type: "tool", name: "calculate", disable_parallel_tool_use: true }]) {
    const own = { ...base, tools, tool_choice };
    const whole = await client.messages.create(own);
    const stream = client.messages.stream(own);
    const inputs = [];
    stream.on("contentBlock", (block) => inputs.push(block.input));
    const final = await stream.finalMessage();
    assert.equal(final.stop_reason, "tool_use");
    assert.deepEqual(withoutIds(final), withoutIds(whole));
    assert.deepEqual(inputs, whole.content.map((block) => block.input));
    const content = whole.content.map(({ id, name, input }) => ({
      type: "tool_result",
      tool_use_id: id,
      content: name === "calculate" ? calculate(input) : "12:00",
    }));
    const messages = [...talk, { role: "assistant", content: whole.content }, { role: "user", content }];
    const answer = await client.messages.create({ ...base, tools, tool_choice: { type: "none" }, messages });
    assert.equal(answer.content[0].type, "text");
    assert(answer.usage.input_tokens > whole.usage.input_tokens);
  }
});

test("the client's tool runner executes ten calls and sends their results back", async () => {
  const results = [];
  const run = (given) => {
    results.push(calculate(given));
    return results.at(-1);
  };
  const runner = client.beta.messages.toolRunner({
    ...base,
    tools: [betaTool({ name: "calculate", description: "adds", inputSchema: calculation, run })],
    tool_choice: { type: "tool", name: "calculate" },
    max_iterations: 10,
  });
  const prompts = [];
  for await (const message of runner) {
    assert.equal(message.stop_reason, "tool_use");
    prompts.push(message.usage.input_tokens + message.usage.cache_read_input_tokens);
  }
  assert.equal(prompts.length, 10);
  assert.deepEqual(prompts, [...new Set(prompts)].sort((a, b) => a - b));
  const sent = runner.params.messages;
  const blocks = (type) => sent.flatMap((each) => (Array.isArray(each.content) ? each.content : [])).filter((each) => each.type === type);
  const [called, answered] = [blocks("tool_use"), blocks("tool_result")];
  assert.deepEqual(answered.map((each) => each.tool_use_id), called.map((each) => each.id).slice(0, answered.length));
  assert.deepEqual(answered.map((each) => each.content), results.slice(0, answered.length));
  assert(answered.length >= 9);
});

test("thinking is a block of its own", async () => {
  const own = { ...base, thinking: { type: "enabled", budget_tokens: 8 } };
  const whole = await client.messages.create(own);
  assert.deepEqual(whole.content.map((block) => block.type), ["thinking", "text"]);
  const stream = client.messages.stream(own);
  let [text, signature] = ["", ""];
  stream.on("thinking", (delta) => (text += delta));
  stream.on("signature", (each) => (signature = each));
  assert.deepEqual(withoutIds(await stream.finalMessage()), withoutIds(whole));
  assert.deepEqual([text, signature], [whole.content[0].thinking, whole.content[0].signature]);
  const messages = [...talk, { role: "assistant", content: whole.content }, ...talk];
  assert((await client.messages.create({ ...own, messages })).content.length);
});

test("tokens are counted as they are used", async () => {
  const { max_tokens, ...counted } = { ...base, tools, system: "Be brief." };
  const { input_tokens } = await client.messages.countTokens(counted);
  const { usage } = await client.messages.create({ ...counted, max_tokens });
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  const { tools: _, ...without } = counted;
  assert((await client.messages.countTokens(without)).input_tokens < input_tokens);
});

test("models are listed", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.deepEqual(models, ["tiny"]);
});

test("invalid requests give an error of the client's own type", async () => {
  for (const [invalid, type, status, pattern] of [
    [{ max_tokens: 0 }, Anthropic.BadRequestError, 400, /max_tokens: /],
    [{ tools: [{ name: "a b", input_schema: nothing }] }, Anthropic.BadRequestError, 400, /tools: /],
    [{ model: "other" }, Anthropic.NotFoundError, 404, /other/],
  ]) {
    await assert.rejects(client.messages.create({ ...base, ...invalid }), (error) => {
      assert(error instanceof type, String(error));
      assert.equal(error.status, status);
      assert.equal(error.error.type, "error");
      assert.match(error.error.error.message, pattern);
      return true;
    });
  }
});
