/** Decode prompts with a bundle opened on a device. */

import { openBundle, type Bundle, type OpenFolder } from "./bundle/bundle.js";
import { anObject, bool, choice, int, isObject, nullable, record, valid, type Reject } from "./bundle/record.js";
import { drawsFromLogits, rejectLogits } from "./decoding/candidates.js";
import { Decoding } from "./decoding/decoding.js";
import type { Step } from "./decoding/step.js";
import { MissingBackendError, failInternally, reject } from "./errors.js";
import type { GenerationOptions } from "./generation_config/config.js";
import { paramsFromOptions } from "./generation_config/resolve.js";
import { IS_NODE, nextTask } from "./platform.js";
import type { DecodingParams } from "./options/decoding_params.js";
import { answerOf } from "./requests/answer.js";
import type { Event, GenerationResult } from "./requests/result.js";
import { DEVICES, filesOfSession, openSession, type Device, type OnnxRuntime } from "./sessions/onnxruntime_session.js";
import type { Session } from "./sessions/session.js";
import { contextFromManifest } from "./state/context.js";
import type { Message as TextMessage } from "./text/chat_template.js";
import { idsFromPrompt, type Prompt } from "./text/prompt_ids.js";
import { TOKENIZER_CONFIG_NAME, TOKENIZER_NAME, openTokenizer, type Tokenizer } from "./text/tokenizer.js";

/** Bytes downloaded so far, and of all files that the decoder needs. */
export interface DownloadProgress {
  readonly loaded: number;
  readonly total: number;
}

/** A message of a chat. The bundle's template may read further fields. */
export interface Message extends TextMessage {
  /** Calls of an assistant, in the form of the HTTP API. */
  readonly tool_calls?: readonly object[];
  /** The call that a message of role "tool" answers. */
  readonly tool_call_id?: string;
  readonly [field: string]: unknown;
}

export interface OpenOptions {
  /** Default: cpu in Node, wasm in a browser. */
  device?: Device;
  /** The module onnxruntime-node, onnxruntime-web or onnxruntime-web/webgpu. Default: it is imported by name, which
   * pages made by a bundler cannot do. */
  ort?: OnnxRuntime;
  /** Number of threads of a forward. Default: ONNX Runtime's choice. */
  threads?: number;
  /** Cancels opening, which then throws the signal's reason: an AbortError, or the value given to abort(). */
  signal?: AbortSignal | null;
  /** Called while files are downloaded. An exception ends the opening. */
  on_progress?: ((progress: DownloadProgress) => unknown) | null;
}

export interface StreamOptions extends GenerationOptions {
  /** Yield a draft after every step. */
  drafts?: boolean | null;
  /** Called after every step. If it returns a promise, the next step waits for it. An exception ends the request. */
  on_step?: ((step: Step) => unknown) | null;
  /** Ends the request after the current step, with stop_reason "cancelled". */
  signal?: AbortSignal | null;
}

const aFunction = nullable(valid((value) => typeof value === "function", "a function"));
const isSignal = (value: unknown): boolean => typeof (value as AbortSignal).aborted === "boolean";
const signal = nullable(valid(isSignal, "an AbortSignal (controller.signal)"));
const OPEN_OPTIONS = record(
  {},
  {
    device: nullable(choice(...DEVICES)),
    ort: nullable(valid((value) => Boolean((value as OnnxRuntime).InferenceSession), "a module of ONNX Runtime")),
    threads: nullable(int(1, 1024)),
    signal,
    on_progress: aFunction,
  },
);
const STREAM_OPTIONS = record({}, { drafts: nullable(bool), on_step: aFunction, signal });
const noTools = valid(() => false, "no tools, which lopa-web lacks");
const CHAT_OPTIONS = record({}, { special_tokens: nullable(bool), tools: noTools });
const failOption: Reject = (received, expected) => reject(received, expected, "correct or remove this option");

/** Parts that index.js has and browser.js lacks, because bundlers for browsers fail on their imports. */
interface Loaders {
  readonly openFolder: OpenFolder;
  /** Return the ONNX Runtime module of a device by the name of its package. */
  readonly importRuntime: (device: Device) => Promise<OnnxRuntime>;
}

/** A bundle opened on a device. Several requests may be decoded at once; their forwards take turns. */
export class Decoder {
  #closing: Promise<void> | null = null;

  protected constructor(
    readonly bundle: Bundle,
    readonly tokenizer: Tokenizer,
    private readonly session: Session,
  ) {}

  /** Open the bundle at an address.
   *
   * The sizes and SHA-256 digests of the files in use are checked. Throws BadInputError and CheckFailedError for an
   * invalid bundle, DownloadFailedError for a failed download, and MissingBackendError for a device that this machine
   * lacks. */
  static open(location: string | URL, options: OpenOptions = {}): Promise<Decoder> {
    return decoderOf((...parts) => new Decoder(...parts), location, options, null);
  }

  get device(): string {
    return this.session.device;
  }

  /** Return the value of every option when this decoder decodes `options`. Throws BadInputError for unknown options,
   * invalid values and invalid combinations. */
  params(options: GenerationOptions = {}): DecodingParams {
    const params = paramsFromOptions(options, this.bundle.manifest, this.device);
    if (drawsFromLogits(params) && !this.bundle.manifest.with_logits) rejectLogits(params);
    return params;
  }

  /** Return the ids of a chat by the bundle's chat template, ready for `stream`.
   *
   * Throws BadInputError for messages that the template rejects, and for special tokens in messages unless
   * `special_tokens` is true. */
  async promptFromMessages(
    messages: readonly Message[],
    options: { special_tokens?: boolean } = {},
  ): Promise<number[]> {
    CHAT_OPTIONS(options, "promptFromMessages", failOption);
    return this.tokenizer.chat(messages, options.special_tokens === true);
  }

  /** Decode one prompt, text or ids, and yield events: committed text, drafts if requested, and the result last.
   *
   * Leaving the loop cancels the request. Throws BadInputError for invalid options, and for an empty or too long
   * prompt. */
  async *stream(prompt: Prompt, options: StreamOptions = {}): AsyncGenerator<Event, void, undefined> {
    anObject(options, "options", failOption);
    const { drafts, on_step: onStep, signal, ...config } = options;
    STREAM_OPTIONS({ drafts, on_step: onStep, signal }, "stream", failOption);
    const { manifest } = this.bundle;
    const params = this.params(config);
    if (isObject((prompt as unknown[] | undefined)?.[0])) {
      reject("messages as a prompt", "text or token ids", "decode await decoder.promptFromMessages(messages)");
    }
    const ids = idsFromPrompt(prompt, params, this.tokenizer, manifest);
    const session = this.session.request();
    const decoding = new Decoding(session, ids, contextFromManifest(params, manifest));
    const answer = answerOf(decoding, ids, this.tokenizer, drafts ?? false);
    try {
      while (!decoding.stopReason) {
        // A forward on WebAssembly blocks its thread, and its promise resolves in the same task.
        await nextTask();
        if (this.#closing) {
          reject("the decoder is closed", "an open decoder", "open the bundle again");
        }
        if (signal?.aborted) {
          decoding.stop("cancelled");
          continue;
        }
        const step = await decoding.step();
        await onStep?.(step);
        yield* answer.eventsFromStep(step);
      }
      yield* answer.lastEvents(decoding.stopReason);
    } finally {
      await session.release();
    }
  }

  /** Decode one prompt and return its result. */
  async generate(prompt: Prompt, options: StreamOptions = {}): Promise<GenerationResult> {
    for await (const event of this.stream(prompt, options)) {
      if (event.type === "done") return event.result;
    }
    failInternally("a stream without a result");
  }

  /** Free the graph after the forwards that run. */
  close(): Promise<void> {
    return (this.#closing ??= this.session.close());
  }
}

/** Open a bundle, and return the decoder that `make` makes of its parts. */
export async function decoderOf<T>(
  make: (bundle: Bundle, tokenizer: Tokenizer, session: Session) => T,
  location: string | URL,
  options: OpenOptions,
  loaders: Loaders | null,
): Promise<T> {
  OPEN_OPTIONS(options, "open", failOption);
  const { threads, signal, on_progress: onProgress } = options;
  const device = options.device ?? (IS_NODE ? "cpu" : "wasm");
  const importRuntime = loaders?.importRuntime ?? missingRuntime;
  let [loaded, total, isOver] = [0, 0, false];
  const onBytes = (count: number): unknown => {
    if (isOver) throw new Error(); // ends a download beside the one that failed
    return onProgress?.({ loaded: (loaded += count), total });
  };
  try {
    const bundle = await openBundle(location, loaders?.openFolder ?? null, signal, onBytes);
    total = bundle.size([TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, ...filesOfSession(bundle, device)]);
    const tokenizer = await openTokenizer(bundle);
    const ort = async (): Promise<OnnxRuntime> => options.ort ?? importRuntime(device);
    const session = await openSession(bundle, ort, device, threads ?? undefined);
    if (signal?.aborted) await session.close();
    signal?.throwIfAborted();
    return make(bundle, tokenizer, session);
  } catch (error) {
    isOver = true;
    throw error;
  }
}

function missingRuntime(device: Device): never {
  reject(
    `device "${device}" without the option ort`,
    "the module of ONNX Runtime, which a bundler must see",
    'import * as ort from "onnxruntime-web/wasm", and pass it as ort',
    undefined,
    MissingBackendError,
  );
}
