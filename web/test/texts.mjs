// Encode texts and render chats, for tests/web/test_web_token_ids.py and test_web_prompts.py.
//
//   node texts.mjs < LINES
//
// A line is the text of a tokenizer.json to open, {"tokenizer": ...}, perhaps with a "template", a text to encode, ids to decode as a whole and as a
// stream, or a chat to render, {"template": ..., "messages": ..., "settings": ...}, perhaps with "tools" or "tokens", or
// "marks" that a template may write. Each has a line of the output: {"error": ...}, {}, {"ids", "text"},
// {"text", "pieces"}, {"text"} or {"marks"}.
import { createInterface } from "node:readline";

import { markupIn, textFromMessages } from "../dist/text/chat_template.js";
import { renderer } from "../dist/text/python_template.js";
import { textStream } from "../dist/text/text_stream.js";
import { openTokenizer } from "../dist/text/tokenizer.js";

const special_tokens = { mask: null, eos: null, pad: null, bos: null };
const manifest = { special_tokens, chat_template: null, dimensions: { max_positions: 4096 } };
let tokenizer;

async function answer(given) {
  if (typeof given === "string") {
    const ids = tokenizer.encode(given, false, false);
    return { ids, text: tokenizer.decode(ids) };
  }
  if (Array.isArray(given)) {
    const stream = textStream(tokenizer, []);
    return { text: tokenizer.decode(given), pieces: [...given.map((id) => stream.push([id])), stream.finish()] };
  }
  if (given.tokenizer !== undefined) {
    const read = async (name) => new TextEncoder().encode(name === "tokenizer.json" ? given.tokenizer : "{}");
    const chat_template = given.template ?? null;
    tokenizer = await openTokenizer({ files: { location: "bundle" }, read, manifest: { ...manifest, chat_template } });
    return {};
  }
  const { template, messages, tools, settings, tokens, marks } = given;
  if (marks) return { marks: marks.map(markupIn(template)) };
  // lopa-web has no tools yet, but its templates have.
  if (tools) return { text: renderer(template)({ ...settings, documents: null, add_generation_prompt: true }, messages, tools).text };
  return { text: await textFromMessages(template, messages, settings, "bundle", tokens) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const found = await answer(JSON.parse(line)).catch((error) => ({ error: `${error.name}: ${error.message}` }));
  console.log(JSON.stringify(found));
}
