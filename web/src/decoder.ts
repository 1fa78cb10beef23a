/** Decode prompts with a bundle opened on a device. */

import { Bundle } from "./bundle/bundle.js";
import { drawsFromLogits, missingLogits } from "./decoding/candidates.js";
import { Decoding } from "./decoding/decoding.js";
import type { Step } from "./decoding/step.js";
import { BadInputError, shown } from "./errors.js";
import type { GenerationOptions } from "./generation_config/config.js";
import { paramsFromOptions } from "./generation_config/resolve.js";
import { IS_NODE } from "./platform.js";
import type { DecodingParams } from "./options/decoding_params.js";
import { Answer } from "./requests/answer.js";
import type { Event, GenerationResult } from "./requests/result.js";
import { DEVICES, openSession, type Device, type OnnxRuntime } from "./sessions/onnxruntime_session.js";
import type { Session } from "./sessions/session.js";
import { contextFromManifest } from "./state/context.js";
import type { Message } from "./text/chat_template.js";
import { idsFromPrompt, type Prompt } from "./text/prompt_ids.js";
import { Tokenizer } from "./text/tokenizer.js";

export interface OpenOptions {
  /** Default: cpu in Node, wasm in a browser. */
  device?: Device;
  /** The module onnxruntime-node, onnxruntime-web or onnxruntime-web/webgpu. Default: it is imported by name. */
  ort?: OnnxRuntime;
  /** Number of threads of a forward. Default: ONNX Runtime's choice. */
  threads?: number;
  /** Cancels downloads. */
  signal?: AbortSignal;
}

export interface StreamOptions extends GenerationOptions {
  /** Yield a draft after every step. */
  drafts?: boolean;
  /** Called after every step. An exception ends the request. */
  on_step?: (step: Step) => void;
  /** Ends the request after the current step, with stop_reason "cancelled". */
  signal?: AbortSignal;
}

/** A bundle opened on a device. Several requests may be decoded at once; their forwards take turns. */
export class Decoder {
  private isClosed = false;

  private constructor(
    readonly bundle: Bundle,
    readonly tokenizer: Tokenizer,
    private readonly session: Session,
  ) {}

  /** Open the bundle in a folder (Node) or at an address.
   *
   * The sizes and SHA-256 digests of the files in use are checked. Throws BadInputError and CheckFailedError for an
   * invalid bundle, and MissingBackendError for a device that this machine lacks. */
  static async open(location: string | URL, options: OpenOptions = {}): Promise<Decoder> {
    const device = options.device ?? (IS_NODE ? "cpu" : "wasm");
    if (!DEVICES.includes(device)) {
      throw new BadInputError(`device ${shown(device)}`, {
        expected: `one of ${DEVICES.join(", ")}`,
        remedy: "choose one of these",
      });
    }
    const bundle = await Bundle.open(location, options.signal);
    const tokenizer = await Tokenizer.open(bundle);
    return new Decoder(bundle, tokenizer, await openSession(bundle, options.ort, device, options.threads));
  }

  get device(): string {
    return this.session.device;
  }

  /** Return the value of every option when this decoder decodes `options`. Throws BadInputError for unknown options,
   * invalid values and invalid combinations. */
  params(options: GenerationOptions = {}): DecodingParams {
    const params = paramsFromOptions(options, this.bundle.manifest, this.device);
    if (drawsFromLogits(params) && !this.bundle.manifest.with_logits) throw missingLogits(params);
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
    return this.tokenizer.chat(messages, options.special_tokens === true);
  }

  /** Decode one prompt, text or ids, and yield events: committed text, drafts if requested, and the result last.
   *
   * Leaving the loop cancels the request. Throws BadInputError for invalid options, and for an empty or too long
   * prompt. */
  async *stream(prompt: Prompt, options: StreamOptions = {}): AsyncGenerator<Event, void, undefined> {
    const { drafts = false, on_step: onStep, signal, ...config } = options;
    const { manifest } = this.bundle;
    const params = this.params(config);
    const ids = idsFromPrompt(prompt, params, this.tokenizer, manifest);
    const session = this.session.request();
    const decoding = new Decoding(session, ids, contextFromManifest(params, manifest));
    const answer = new Answer(decoding, ids, this.tokenizer, drafts);
    try {
      while (decoding.stopReason === null) {
        if (this.isClosed) {
          throw new BadInputError("the decoder is closed", {
            expected: "an open decoder",
            remedy: "open the bundle again",
          });
        }
        if (signal?.aborted) {
          decoding.stop("cancelled");
          continue;
        }
        const step = await decoding.step();
        onStep?.(step);
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
    throw new Error("a stream without a result (this is a bug in lopa-web, please report it)");
  }

  /** Free the graph after the forwards that run. */
  async close(): Promise<void> {
    if (this.isClosed) return;
    this.isClosed = true;
    await this.session.close();
  }
}
