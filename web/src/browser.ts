/** Decode bundles of lopa-export in a browser, without imports of Node. Bundlers take this file. */

export { SCHEMA_VERSION } from "./bundle/manifest.js";
export type { Step } from "./decoding/step.js";
export { Decoder, type DownloadProgress, type Message, type OpenOptions, type StreamOptions } from "./decoder.js";
export {
  BadInputError,
  CheckFailedError,
  DownloadFailedError,
  EngineFailedError,
  LopaError,
  MissingBackendError,
  NonFiniteAnswerError,
  PromptTooLongError,
} from "./errors.js";
export type { GenerationOptions } from "./generation_config/config.js";
export type { DecodingParams } from "./options/decoding_params.js";
export type { DoneEvent, DraftEvent, Event, GenerationResult, TextEvent } from "./requests/result.js";
export type { Prompt } from "./text/prompt_ids.js";
