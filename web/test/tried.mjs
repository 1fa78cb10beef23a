// Try options and inputs with a decoder, for tests/interfaces.
//
//   node tried.mjs BUNDLE < REQUEST
//
// REQUEST is {"prompt": text, "messages": [...], "options": [JSON, ...], "size": tokens, "streamed": {...}, "tool": {...}}. The result has
// true for each option, by its JSON, and for each input that works, and false for what is refused by name.
export async function tried(decoder, { prompt, messages, options, size, streamed, tool }) {
  const accepted = async (call) => {
    try {
      return Boolean(await call());
    } catch (error) {
      if (error.name === "BadInputError") return false;
      throw error;
    }
  };
  const stream = async (given, until = () => false) => {
    const events = [];
    for await (const event of decoder.stream(prompt, { ...streamed, ...given })) {
      events.push(event);
      until(event);
    }
    return events;
  };
  const cancels = async () => {
    const abort = new AbortController();
    const events = await stream({ max_new_tokens: 512, drafts: true, signal: abort.signal }, () => abort.abort());
    return events.at(-1).result.stop_reason === "cancelled";
  };
  const chat = async (...more) => decoder.generate(await decoder.promptFromMessages(messages, ...more), { max_new_tokens: size });
  const found = {
    chats: await accepted(() => chat()),
    // Arguments that a function does not have are ignored, so the prompt has to show the tool.
    tools: await accepted(async () => String(await decoder.promptFromMessages(messages, { tools: [tool] })) !==
      String(await decoder.promptFromMessages(messages))),
    holes: "fill" in decoder,
    "[revision of a text](fill-holes.md#revise-a-text)": "revise" in decoder,
    "text as it comes": (await stream({})).filter((event) => event.type === "text").length > 1,
    "draft after each step": (await stream({ drafts: true })).some((event) => event.type === "draft"),
    cancel: await accepted(cancels),
  };
  for (const each of options) {
    found[each] = await accepted(() => decoder.generate(prompt, { max_new_tokens: size, ...JSON.parse(each) }));
  }
  return found;
}

if (typeof process !== "undefined" && process.argv[1]?.endsWith("tried.mjs")) {
  const { Decoder } = await import("../dist/index.js");
  const { text } = await import("node:stream/consumers");
  const decoder = await Decoder.open(process.argv[2], { threads: 1 });
  console.log(JSON.stringify(await tried(decoder, JSON.parse(await text(process.stdin)))));
  await decoder.close();
}
