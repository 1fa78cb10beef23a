/** The prompt text of a chat, by the bundle's template and the package @huggingface/jinja. */

import type { JsonObject } from "../bundle/record.js";
import { isObject } from "../bundle/record.js";
import { BadInputError, errorText, shown } from "../errors.js";

const MAX_MESSAGES = 4096;

export interface Message {
  readonly role: string;
  readonly content: string;
}

/** Return the only chat template of tokenizer_config.json, or the one named "default" of several; null for none. */
export function templateOfSettings(settings: JsonObject): string | null {
  let found = settings["chat_template"];
  if (Array.isArray(found)) {
    found = (found as unknown[]).filter(isObject).find((each) => each["name"] === "default")?.["template"];
  }
  return typeof found === "string" ? found : null;
}

/** Return the prompt text of a chat, up to the start of the assistant's answer.
 *
 * `settings` are those of tokenizer_config.json, with the texts of bos_token and others. Throws BadInputError for
 * invalid messages, and for a template that rejects them or fails. */
export async function textFromMessages(
  template: string,
  messages: unknown,
  settings: JsonObject,
  location: string,
): Promise<string> {
  const expected = "messages with roles in an order that this template allows";
  checkMessages(messages);
  const names: Record<string, unknown> = { messages, tools: null, documents: null, add_generation_prompt: true };
  for (const [name, value] of Object.entries(settings)) {
    const text = isObject(value) ? value["content"] : value;
    if (name.endsWith("_token") && typeof text === "string") names[name] = text;
  }
  try {
    // Only chats need this package, which is as large as this one.
    const { Template } = await import("@huggingface/jinja");
    return new Template(template).render(names);
  } catch (error) {
    throw new BadInputError(
      `the chat template of ${location} failed: ${errorText(error)}`,
      { expected, remedy: "change the messages, or send a plain prompt" },
      error,
    );
  }
}

/** Return true if the template itself writes the markup `text`, such as <tool_call>, or the other mark of its pair. */
export function isMarkup(text: string, template: string): boolean {
  const inner = text.trim();
  if (inner.length < 2 || /^[\p{L}\p{N} ]*$/u.test(inner)) return false;
  const pair = inner[1] === "/" ? inner.replace("/", "") : `${inner[0]}/${inner.slice(1)}`;
  return template.includes(inner) || template.includes(pair);
}

function checkMessages(messages: unknown): asserts messages is readonly Message[] {
  const isMessage = (each: unknown): boolean =>
    isObject(each) && typeof each["role"] === "string" && typeof each["content"] === "string";
  const isChat = Array.isArray(messages) && messages.length > 0 && messages.length <= MAX_MESSAGES;
  if (isChat && messages.every(isMessage)) return;
  throw new BadInputError(`invalid chat ${shown(messages)}`, {
    expected: `a list of 1 to ${MAX_MESSAGES} messages with the texts role and content`,
    remedy: 'e.g. [{ role: "user", content: "Hello" }]',
  });
}
