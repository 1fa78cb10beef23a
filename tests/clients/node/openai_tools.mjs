// Tools and reasoning with the unmodified npm package openai, over chats and responses.

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

import { question, talk, url } from "./server.mjs";
import { calculate, calculation, nothing } from "./tools.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const named = (name, parameters) => ({ type: "function", function: { name, parameters, strict: true } });
const tools = [named("calculate", calculation), named("now", nothing)];
const choice = { type: "function", function: { name: "calculate" } };
const base = { model: "tiny", messages: talk, max_tokens: 80, reasoning_effort: "none" };
const flat = tools.map(({ type, function: each }) => ({ type, ...each }));
const response = { model: "tiny", input: question, max_output_tokens: 80, reasoning: { effort: "none" }, tools: flat };

function calls(message) {
  return message.tool_calls.map((each) => [each.type, each.function.name, each.function.arguments]);
}

test("calls of a chat, whole and streamed", async () => {
  for (const tool_choice of ["required", choice]) {
    const whole = await client.chat.completions.create({ ...base, tools, tool_choice });
    const [{ message, finish_reason }] = whole.choices;
    assert.equal(finish_reason, "tool_calls");
    assert.equal(message.content, null);
    const stream = client.chat.completions.stream({ ...base, tools, tool_choice });
    const done = [];
    stream.on("tool_calls.function.arguments.done", (each) => done.push([each.name, each.arguments]));
    const final = (await stream.finalChatCompletion()).choices[0];
    assert.equal(final.finish_reason, "tool_calls");
    assert.deepEqual(calls(final.message), calls(message));
    assert.deepEqual(done, calls(message).map(([, name, text]) => [name, text]));
    const ids = [...message.tool_calls, ...final.message.tool_calls].map((each) => each.id);
    assert.equal(new Set(ids).size, ids.length);
    for (const [, name, text] of calls(message)) {
      if (name === "calculate") calculate(JSON.parse(text));
      else assert.equal(text, "{}");
    }
  }
});

test("every chunk has the fields that strict clients read", async () => {
  const stream = await client.chat.completions.create({ ...base, tools, tool_choice: choice, stream: true });
  const seen = [];
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    assert(chunk.id && chunk.created && chunk.model);
    for (const { index, delta } of chunk.choices) {
      assert.equal(index, 0);
      seen.push(...(delta.tool_calls ?? []));
    }
  }
  assert.deepEqual(
    seen.map((each) => [each.index, each.type, each.function.name]),
    [[0, "function", "calculate"]],
  );
});

test("the client's runner calls the tool and sends its result back", async () => {
  const results = [];
  const run = (given) => {
    results.push(calculate(given));
    return results.at(-1);
  };
  const own = { ...choice.function, parameters: calculation, function: run, parse: JSON.parse };
  const once = client.chat.completions.runTools({
    ...base,
    tools: [{ type: "function", function: own }],
    tool_choice: choice,
  });
  await once.done();
  assert.deepEqual(once.messages.map((each) => each.role), ["user", "assistant", "tool"]);
  assert.equal(once.messages.at(-1).tool_call_id, once.messages[1].tool_calls[0].id);
  assert.deepEqual([once.messages.at(-1).content], results);
  const answer = await client.chat.completions.create({ ...base, tools, tool_choice: "none", messages: once.messages });
  assert.equal(typeof answer.choices[0].message.content, "string");
  assert.equal(answer.choices[0].message.tool_calls, undefined);
});

test("reasoning of a chat has both names", async () => {
  const thinking = { ...base, reasoning_effort: "high", thinking_token_budget: 8 };
  const [{ message }] = (await client.chat.completions.create(thinking)).choices;
  assert(message.reasoning && message.content);
  assert.equal(message.reasoning_content, message.reasoning);
  const parts = { content: "", reasoning: "", reasoning_content: "" };
  for await (const chunk of await client.chat.completions.create({ ...thinking, stream: true })) {
    for (const name of Object.keys(parts)) parts[name] += chunk.choices[0].delta[name] ?? "";
  }
  const { content, reasoning } = message;
  assert.deepEqual(parts, { content, reasoning, reasoning_content: reasoning });
});

test("calls of a response, whole and streamed", async () => {
  const own = { ...response, tool_choice: { type: "function", name: "calculate" } };
  const whole = await client.responses.create(own);
  assert.equal(whole.status, "completed");
  const stream = client.responses.stream(own);
  const events = [];
  for await (const event of stream) events.push(event);
  const final = await stream.finalResponse();
  const fields = (item) => [item.type, item.status, item.name, item.arguments];
  assert.deepEqual(final.output.map(fields), whole.output.map(fields));
  assert.deepEqual(final.output.map(({ type, name }) => [type, name]), [["function_call", "calculate"]]);
  calculate(JSON.parse(final.output[0].arguments));
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    [...events.keys()],
  );
  const items = events.filter((event) => event.item).map((event) => [event.item.id, event.item.call_id]);
  assert.deepEqual(items, Array(2).fill([final.output[0].id, final.output[0].call_id]));
});

test("a response's calls and results go back, and text is streamed", async () => {
  const first = await client.responses.create({ ...response, tool_choice: "required" });
  const called = first.output.filter((item) => item.type === "function_call");
  assert(called.length);
  const results = called.map(({ call_id, name, arguments: text }) => ({
    type: "function_call_output",
    call_id,
    output: name === "calculate" ? calculate(JSON.parse(text)) : "12:00",
  }));
  const input = [{ role: "user", content: question }, ...first.output, ...results];
  const own = { ...response, input, tool_choice: "none" };
  const whole = await client.responses.create(own);
  assert(whole.usage.input_tokens > first.usage.input_tokens);
  const stream = client.responses.stream(own);
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert.deepEqual([text, final.output_text], [whole.output_text, whole.output_text]);
});

test("reasoning of a response is an item of its own", async () => {
  const { tools: _, ...own } = { ...response, reasoning: { effort: "high" }, thinking_token_budget: 8 };
  const whole = await client.responses.create(own);
  assert.deepEqual(whole.output.map((item) => item.type), ["reasoning", "message"]);
  const stream = client.responses.stream(own);
  let text = "";
  stream.on("response.reasoning_text.delta", (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert.equal(text, whole.output[0].content[0].text);
  assert.equal(final.output_text, whole.output_text);
});
