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

test("no part of a message becomes a special token, whatever a template does to it", async () => {
  const { openTokenizer } = await import("../dist/text/tokenizer.js");
  const manifest = {
    special_tokens: { mask: null, eos: null, pad: null, bos: null },
    chat_template: null,
    dimensions: { max_positions: 4096 },
  };
  const file = await readFile(`${process.env.BUNDLE}/tokenizer.json`);
  const opened = (template) => {
    const settings = new TextEncoder().encode(JSON.stringify({ chat_template: template }));
    const read = async (name) => (name === "tokenizer.json" ? file : settings);
    return openTokenizer({ files: { location: "bundle" }, read, manifest });
  };
  const special = "<|endoftext|>";
  for (const [template, ...contents] of [
    ["{{ messages[0].content | replace('\\r', '') }}", "<|\rendoftext|>"],
    ["{{ messages[0].content.split('~') | join }}", "<|~endoftext|>"],
    ["{{ messages[0].content[::-1] }}", ">|txetfodne|<"],
    ["<{{ messages[0].content }}", "|endoftext|>"],
    ["{% for m in messages %}{{ m.content | trim }}{% endfor %}", "<|\n", "endoftext|>"],
    ["{{ messages[0].content }}", special],
  ]) {
    const { chat } = await opened(template);
    const messages = contents.map((content) => ({ role: "user", content }));
    await assert.rejects(chat(messages, false), /a message with the special token/);
    await chat(messages, true);
  }
  const { chat } = await opened(`${special}{{ messages[0].content }}`);
  const [id] = await chat([{ role: "user", content: "a", name: special }], false);
  const [only] = (await opened(special)).encode(special, false, true);
  assert.equal(id, only);
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
