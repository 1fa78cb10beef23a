/** The prompt text of a chat, by the bundle's template. */

import type { JsonObject } from "../bundle/record.js";
import { isObject } from "../bundle/record.js";
import { errorText, reject, shown } from "../errors.js";
import { renderer, textsOf } from "./python_template.js";
import { stripped, Text as Rendered } from "./python_values.js";

const MAX_MESSAGES = 100_000;
const ROLE = /^(system|developer|user|assistant|tool|function|ipython|environment|observation|model|human|bot|gpt)$/;
/** Fields with an assistant's calls. A message with one of them may lack content. */
const CALLS = ["tool_calls", "function_call"];

export interface Message {
  readonly role: string;
  /** Parts of text are joined. Null only beside calls of tools. */
  readonly content: string | readonly TextPart[] | null;
}

export interface TextPart {
  readonly type: "text";
  readonly text: string;
}

/** Return the only chat template of tokenizer_config.json, or the last one named "default" of several; null for none. */
export function templateOfSettings(settings: JsonObject): string | null {
  let found = settings["chat_template"];
  if (Array.isArray(found)) {
    const named = (found as unknown[]).filter((each) => isObject(each) && each["name"] === "default") as JsonObject[];
    found = named.at(-1)?.["template"];
  }
  return typeof found === "string" ? found : null;
}

/** Return the prompt text of a chat, up to the start of the assistant's answer.
 *
 * `settings` are those of tokenizer_config.json, with the texts of bos_token and others. Throws BadInputError for
 * invalid messages, for a template that rejects them, fails or uses what lopa-web lacks, and for `tokens` of which a
 * character came from a message. */
export async function textFromMessages(
  template: string,
  messages: unknown,
  settings: JsonObject,
  location: string,
  tokens: readonly string[] = [],
): Promise<string> {
  checkMessages(messages);
  const names: Record<string, unknown> = { documents: null, add_generation_prompt: true };
  for (const [name, value] of Object.entries(settings)) {
    const text = isObject(value) ? value["content"] : value;
    if (name.endsWith("_token") && typeof text === "string") names[name] = text;
  }
  let rendered;
  try {
    const renderOf = renderer(template);
    const render = (given: readonly unknown[]): Rendered => renderOf(names, given);
    const chat = messages.map((each) => ({ ...each, content: textOf(each.content) }));
    const roles = new Set(chat.map((each) => each.role));
    const inParts = new Set([...roles].filter((role) => takesOnlyParts(render, role)));
    rendered = render(
      chat.map((each) => (inParts.has(each.role) ? asParts(each) : each)),
    );
  } catch (error) {
    reject(
      `the chat template of ${location} failed: ${errorText(error)}`,
      "messages with roles in an order that this template allows",
      "change the messages, or send a plain prompt",
      error,
    );
  }
  const [text, own] = [rendered.text, rendered.own].map(folded) as [string, string];
  const found = tokens.find((token) => text.split(folded(token)).length > own.split(folded(token)).length);
  if (found !== undefined) {
    reject(
      `a message with the special token ${shown(found)}`,
      "messages without special tokens",
      "remove it, or set special_tokens",
    );
  }
  return rendered.text;
}

/** Return `text` as normalizers may change it. */
const folded = (text: string): string => text.normalize("NFC").toLowerCase();

/** Return true if the template loses the text of a message of `role` unless its content is a list of parts.
 *
 * A role that the template rejects in a short chat is treated like the user's. */
function takesOnlyParts(render: (chat: readonly unknown[]) => Rendered, role: string): boolean {
  const userInParts = role !== "user" && takesOnlyParts(render, "user");
  const hello = { role: "user", content: "Hello" };
  const other = userInParts ? asParts(hello) : hello;
  const before = ["user", "system", "developer"].includes(role) ? [] : [other];
  const after = role === "user" ? [] : [other];
  for (const form of [(each: Message): unknown => each, asParts]) {
    const found = new Set<string>();
    for (const content of ["What is 2 + 3?", "?3 + 2 si tahW"]) {
      try {
        found.add(render([...before, form({ role, content }), ...after]).text);
      } catch {
        // The error is raised where the template is used.
      }
    }
    if (found.size > 1) return form === asParts;
  }
  return userInParts;
}

const asParts = (message: Message): unknown => ({
  ...message,
  content: message.content == null ? null : [{ type: "text", text: message.content }],
});

/** Return a function that returns true if the template itself writes the markup `text`, such as <tool_call>, or the
 * other mark of its pair. It returns null if lopa-web cannot tell, as it lacks a feature of the template. */
export function markupIn(template: string): (text: string) => boolean | null {
  let texts: string | null = null;
  try {
    texts = textsOf(template);
  } catch {
    // The error is raised where the template is used.
  }
  const own = `${template}\0${texts ?? ""}`;
  return (text) => {
    const inner = stripped(new Rendered(text), 3).text;
    const [first, second, ...rest] = inner;
    if (second === undefined || /^[\p{L}\p{N} ]*$/u.test(inner)) return false;
    const pair = second === "/" ? inner.replace("/", "") : [first, "/", second, ...rest].join("");
    return own.includes(inner) || own.includes(pair) || (texts === null ? null : false);
  };
}

/** Return the text of content, whose parts are joined; null for any other value. */
function textOf(content: unknown): string | null {
  const parts = (Array.isArray(content) ? content : [{ type: "text", text: content }]) as unknown[];
  const texts = parts.map((each) => (isObject(each) && each["type"] === "text" ? each["text"] : null));
  return texts.every((each) => typeof each === "string") ? texts.join("") : null;
}

/** Return true for what Python counts as true. */
const isFilled = (value: unknown): boolean =>
  Boolean(isObject(value) ? Object.keys(value).length : Array.isArray(value) ? value.length : value);

function checkMessages(messages: unknown): asserts messages is readonly Message[] {
  const isMessage = (each: unknown): boolean =>
    isObject(each) &&
    ROLE.test(each["role"] as string) &&
    (textOf(each["content"]) !== null || (each["content"] == null && CALLS.some((name) => isFilled(each[name]))));
  const isChat = Array.isArray(messages) && messages.length > 0 && messages.length <= MAX_MESSAGES;
  if (isChat && messages.every(isMessage)) return;
  reject(
    `invalid chat ${shown(messages)}`,
    `1 to ${MAX_MESSAGES} messages with a known role and text, perhaps in parts, which may lack beside tool_calls`,
    'e.g. [{ role: "user", content: "Hello" }]',
  );
}
