/* Answers of a page without a server: lopa-web decodes the bundle beside the page, and the events have the form of the
   server's streams. index.html has the page. */
import { Decoder, MissingBackendError } from "lopa-web";
import { textStream } from "./packages/lopa-web/text/text_stream.js";

const STRATEGIES = ["lopa", "d2f", "threshold", "vanilla", "sequential", "eb"];
/* index.html?device=webgpu decodes on the GPU. */
const device = new URLSearchParams(location.search).get("device") ?? "wasm";
const ort = await import(device === "webgpu" ? "onnxruntime-web/webgpu" : "onnxruntime-web");
/* Threads of WebAssembly need the headers that service_worker.js adds. */
const threads = crossOriginIsolated ? navigator.hardwareConcurrency : 1;
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

export async function open(report) {
  const on_progress = ({ loaded, total }) =>
    loaded < total
      ? report(`Loading the model: ${megabytes(loaded)} of ${megabytes(total)} MB.`, loaded / total)
      : report("Starting ONNX Runtime, which has 13 to 26 MB.");
  const open = Decoder.open(new URL("bundle", location.href), { device, ort, threads, on_progress });
  const decoder = await open.catch((error) => {
    if (/no available backend found/.test(error.received ?? error.message))
      Object.assign(error, {
        received: "the ONNX runtime of this page cannot be started: one of its files is missing, or WebAssembly is forbidden",
        expected: "all files that lopa-export page wrote, and a browser and a host that allow WebAssembly",
        remedy: "check the network and the page's host, and reload the page",
      });
    else if (device !== "wasm" && (error instanceof MissingBackendError || /^open.device/.test(error.received)))
      error.remedy = `open this page without ?device=${device}`;
    throw error;
  });
  const promptOf = ({ messages, prompt }) => (messages ? decoder.promptFromMessages(messages) : prompt);
  return {
    async model() {
      const { content: name } = document.querySelector('meta[name="lopa-model"]');
      const chat = decoder.promptFromMessages([{ role: "user", content: "Hello" }]);
      return { name, hasChat: await chat.then(() => true, () => false), strategies: STRATEGIES };
    },

    async *events(path, body, signal) {
      const written = new Map();
      let step;
      const options = {
        ...body.lopa,
        max_new_tokens: body.max_tokens,
        temperature: body.temperature,
        drafts: true,
        on_step(each) {
          step = each;
          record(step, written);
        },
        signal,
      };
      for await (const event of decoder.stream(await promptOf(body), options)) {
        if (event.type === "text") yield { choices: [{ text: event.text }] };
        else if (event.type === "draft") {
          const { winner: branch, confidences, branches } = step;
          const { step: number, unmasked, token_ids } = event;
          const tokens = tokensOf(event, written, decoder.tokenizer);
          const counts = { unmasked, branch, branches: branches.length, positions: token_ids.length };
          yield { choices: [{ text: "", lopa: { step: number, ...counts, confidences, tokens } }] };
        } else {
          signal.throwIfAborted();
          yield { choices: [{ text: "", finish_reason: event.result.stop_reason, lopa: event.result }] };
        }
      }
    },
  };
}

/* Record how a step wrote each of its tokens, by position. A lookahead token was proposed by the step before; one that
   completes the answer is accepted by the step that proposed it. */
function record({ number: step, branches, winner, unmasked, lookaheads }, written) {
  const branch = winner === branches.length - 1 ? null : winner;
  const put = (position, token, probability) => written.set(position, { token, step, branch, probability });
  for (const look of [branches[winner].lookahead, ...lookaheads])
    if (look !== null) put(look.position, look.token, look.probability);
  unmasked.positions.forEach((position, index) => put(position, unmasked.tokens[index], unmasked.probabilities[index]));
}

/* Return the tokens of a draft as the server sends them, all of them every time. */
function tokensOf({ token_ids: ids, start }, written, tokenizer) {
  let stream = null;
  return ids.map((id, index) => {
    stream = id === null ? null : (stream ?? textStream(tokenizer, []));
    if (stream === null) return { index, text: null };
    const { token, ...how } = written.get(start + index) ?? {};
    return { index, text: stream.push([id]), ...(token === id && how) };
  });
}
