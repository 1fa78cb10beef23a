// Chats by the template of the bundle in the folder BUNDLE.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";

import { BadInputError, Decoder } from "../dist/index.js";

let decoder;
before(async () => {
  decoder = await Decoder.open(process.env.BUNDLE, { threads: 1 });
});
after(() => decoder.close());

test("ids of chats and of markup in text equal those of Python", async () => {
  for (const { messages, text, ids } of JSON.parse(await readFile(process.env.EXPECTED, "utf8"))) {
    const found = messages ? await decoder.promptFromMessages(messages) : decoder.tokenizer.encode(text, false, false);
    assert.deepEqual(found, ids);
  }
});

test("a special token in a message is rejected, unless it is allowed", async () => {
  const messages = [{ role: "user", content: "a <tool_call>" }];
  await assert.rejects(decoder.promptFromMessages(messages), BadInputError);
  const ids = await decoder.promptFromMessages(messages, { special_tokens: true });
  assert.ok(ids.some((id) => decoder.tokenizer.shownMarkup.get(id) === "<tool_call>"));
});

test("no part of a message becomes a special token", async () => {
  const user = { role: "user", content: "a" };
  for (const messages of [
    [{ ...user, name: "<tool_call>" }],
    [{ ...user, tool_calls: [{ "<TOOL_call>": 1 }] }, user],
    [{ ...user, content: "<tool_" }, { ...user, content: "call>" }],
  ]) {
    await assert.rejects(decoder.promptFromMessages(messages), /a message with the special token/);
  }
});

test("the last template named default counts, as in Python", async () => {
  const { templateOfSettings } = await import("../dist/text/chat_template.js");
  const named = (name, template) => ({ name, template });
  const last = [named("default", "a"), 1, named("tool_use", "b"), named("default", "c")];
  assert.equal(templateOfSettings({ chat_template: last }), "c");
  assert.equal(templateOfSettings({ chat_template: [...last, named("default", 1)] }), null);
});

test("invalid messages are rejected", async () => {
  for (const messages of [[], "text", [{ role: "user" }], [{ role: "user<tool_call>", content: "a" }], [{ role: "user", content: [1] }]]) {
    await assert.rejects(decoder.promptFromMessages(messages), BadInputError);
  }
});

test("text events have the offsets of markup", async () => {
  const { textStream } = await import("../dist/text/text_stream.js");
  const [mark, text] = [...decoder.tokenizer.shownMarkup].find(([, shown]) => shown === "<tool_call>");
  const stream = textStream(decoder.tokenizer, []);
  const before = stream.push(decoder.tokenizer.encode("a b", false, false));
  const shown = before + stream.push([mark]) + stream.finish();
  assert.ok(shown.endsWith(text));
  assert.deepEqual(stream.markup, [shown.length - text.length]);
});
