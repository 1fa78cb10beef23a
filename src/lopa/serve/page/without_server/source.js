/* Answers of a page without a server: lopa-web decodes the bundle beside the page, and the events have the form of the
   server's streams. index.html has the page. */
import { Decoder } from "lopa-web";

const STRATEGIES = ["lopa", "d2f", "threshold", "vanilla", "sequential", "eb"];
/* index.html?device=webgpu decodes on the GPU. */
const device = new URLSearchParams(location.search).get("device") ?? "wasm";
/* Threads of WebAssembly need the headers that service_worker.js adds. */
const threads = crossOriginIsolated ? navigator.hardwareConcurrency : 1;
const painted = () => new Promise((done) => setTimeout(done, 0));

const decoder = await Decoder.open(new URL("bundle", location.href), { device, threads });

const promptOf = async ({ messages, prompt }) => (messages ? decoder.promptFromMessages(messages) : prompt);
const hasChat = () =>
  promptOf({ messages: [{ role: "user", content: "Hello" }] }).then(
    () => true,
    () => false,
  );

export const source = {
  async model() {
    const name = document.querySelector('meta[name="lopa-model"]').content;
    return { name, hasChat: await hasChat(), strategies: STRATEGIES };
  },

  async *events(path, body, signal) {
    let step;
    const options = {
      ...body.lopa,
      max_new_tokens: body.max_tokens,
      temperature: body.temperature,
      drafts: true,
      on_step: (each) => (step = each),
      signal,
    };
    for await (const event of decoder.stream(await promptOf(body), options)) {
      if (event.type === "text") yield { choices: [{ text: event.text }] };
      else if (event.type === "draft") {
        const { winner: branch, confidences, branches } = step;
        const { text: draft, step: number, unmasked } = event;
        const lopa = { draft, step: number, unmasked, branch, branches: branches.length, confidences };
        yield { choices: [{ text: "", lopa }] };
        await painted();
      } else {
        signal.throwIfAborted();
        yield { choices: [{ text: "", finish_reason: event.result.stop_reason, lopa: event.result }] };
      }
    }
  },
};
