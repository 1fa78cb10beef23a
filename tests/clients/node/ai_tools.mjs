// Tools and reasoning with the unmodified npm packages ai and @ai-sdk/openai-compatible.

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

import { talk, url } from "./server.mjs";
import { calculate, calculation } from "./tools.mjs";

const provider = createOpenAICompatible({ name: "lopa", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true });
const quiet = { lopa: { reasoningEffort: "none" } };
const base = { model: provider("tiny"), messages: talk, maxOutputTokens: 80, maxRetries: 0, providerOptions: quiet };
/** Calls in the first two steps, and text in the last one. */
const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? "required" : "none" });
const loop = { prepareStep, stopWhen: stepCountIs(3) };

function calculator(results) {
  const execute = (given) => {
    results.push(calculate(given));
    return results.at(-1);
  };
  return { calculate: tool({ description: "adds", inputSchema: jsonSchema(calculation), execute }) };
}

function calledAndAnswered(steps) {
  return steps.map((step) => [
    step.toolCalls.map((each) => [each.toolName, each.input]),
    step.toolResults.map((each) => each.output),
  ]);
}

test("tools run in a loop of three steps", async () => {
  const results = [];
  const answer = await generateText({ ...base, ...loop, tools: calculator(results) });
  assert.equal(answer.steps.length, 3);
  assert.deepEqual(answer.steps.map((step) => step.finishReason).slice(0, 2), ["tool-calls", "tool-calls"]);
  assert.deepEqual(answer.steps.flatMap((step) => step.toolResults.map((each) => each.output)), results);
  assert(results.length >= 2);
  for (const step of answer.steps) {
    const ids = [step.toolCalls, step.toolResults].map((each) => each.map((one) => one.toolCallId));
    assert.deepEqual(ids[0], ids[1]);
  }
  const prompts = answer.steps.map((step) => step.usage.inputTokens);
  assert(prompts[0] < prompts[1] && prompts[1] < prompts[2], String(prompts));
});

test("a streamed loop equals the whole one", async () => {
  const [results, again] = [[], []];
  const whole = await generateText({ ...base, ...loop, tools: calculator(results) });
  const stream = streamText({ ...base, ...loop, tools: calculator(again) });
  let text = "";
  const inputs = {};
  for await (const part of stream.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
    if (part.type === "text-delta") text += part.text;
    if (part.type === "tool-input-delta") inputs[part.id] = (inputs[part.id] ?? "") + part.delta;
  }
  const steps = await stream.steps;
  assert.deepEqual(calledAndAnswered(steps), calledAndAnswered(whole.steps));
  assert.deepEqual(again, results);
  assert.equal(await stream.text, whole.text);
  assert(text.endsWith(whole.text));
  for (const call of steps.flatMap((step) => step.toolCalls)) {
    assert.deepEqual(JSON.parse(inputs[call.toolCallId]), call.input);
  }
});

test("a tool without execute ends the loop with its call", async () => {
  const tools = { calculate: tool({ inputSchema: jsonSchema(calculation) }) };
  const toolChoice = { type: "tool", toolName: "calculate" };
  const answer = await generateText({ ...base, tools, toolChoice, stopWhen: stepCountIs(5) });
  assert.equal(answer.steps.length, 1);
  assert.equal(answer.finishReason, "tool-calls");
  calculate(answer.toolCalls[0].input);
});

test("reasoning is apart from the text, and is not doubled", async () => {
  const own = { ...base, providerOptions: { lopa: { reasoningEffort: "high", thinking_token_budget: 8 } } };
  const whole = await generateText(own);
  assert(whole.reasoningText && whole.text);
  const body = { model: "tiny", messages: talk, max_tokens: 80, reasoning_effort: "high", thinking_token_budget: 8 };
  const headers = { "content-type": "application/json" };
  const sent = await fetch(`${url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  assert.equal(whole.reasoningText, (await sent.json()).choices[0].message.reasoning);
  const stream = streamText(own);
  const parts = { "reasoning-delta": "", "text-delta": "" };
  for await (const part of stream.fullStream) if (part.type in parts) parts[part.type] += part.text;
  assert.deepEqual(parts, { "reasoning-delta": whole.reasoningText, "text-delta": whole.text });
  const usage = await stream.usage;
  assert(usage.outputTokenDetails.reasoningTokens > 0);
});
