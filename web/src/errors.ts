/** Errors for users: what was received, what was expected and what to do. */

export interface ErrorText {
  readonly expected: string;
  readonly remedy: string;
}

/** Base class of all errors that this package throws on purpose. */
export class LopaError extends Error {
  readonly received: string;
  readonly expected: string;
  readonly remedy: string;

  constructor(received: string, { expected, remedy }: ErrorText, cause?: unknown) {
    super(`${received}\n  expected: ${expected}\n  what to do: ${remedy}`, cause === undefined ? {} : { cause });
    this.name = new.target.name;
    this.received = received;
    this.expected = expected;
    this.remedy = remedy;
  }
}

/** An invalid file, option or value. */
export class BadInputError extends LopaError {}

/** A prompt that leaves no positions for its answer. */
export class PromptTooLongError extends BadInputError {}

/** A forward returned NaN, infinity or no token. */
export class NonFiniteAnswerError extends BadInputError {}

/** A file could not be downloaded: the connection broke, or the server failed. */
export class DownloadFailedError extends BadInputError {}

/** A completed check failed: a file differs from its digest. */
export class CheckFailedError extends LopaError {}

/** A library, device or feature is missing on this machine. */
export class MissingBackendError extends LopaError {}

/** The device failed during a forward. */
export class EngineFailedError extends LopaError {}

const MAX_SHOWN_CHARACTERS = 80;
const MAX_MESSAGE_CHARACTERS = 300;

/** Return a short printable form of any value for an error. */
export function shown(value: unknown): string {
  let text: string;
  try {
    text = String(value); // names what JSON lacks, such as NaN and [object AbortController]
    const isJson = /^(object|string)$/.test(typeof value) && !/^\[object (?!Obj)/.test(text);
    if (isJson) text = JSON.stringify(value, (_, each: unknown) => (Number.isNaN(each) ? "NaN" : each));
  } catch {
    text = `a value of type ${typeof value}`;
  }
  return text.length <= MAX_SHOWN_CHARACTERS ? text : `${text.slice(0, MAX_SHOWN_CHARACTERS)}...`;
}

/** Return a short description of anything that was thrown. */
export const errorText = (error: unknown): string =>
  (error instanceof Error ? error.message : String(error)).slice(0, MAX_MESSAGE_CHARACTERS);

/** Throw a BadInputError, or another error of this package. */
export function reject(
  received: string,
  expected: string,
  remedy: string,
  cause?: unknown,
  Kind: new (received: string, text: ErrorText, cause?: unknown) => LopaError = BadInputError,
): never {
  throw new Kind(received, { expected, remedy }, cause);
}

/** Throw an error that only a mistake in this package can cause. */
export function failInternally(problem: string): never {
  throw new Error(`${problem} (this is a bug in lopa-web, please report it)`);
}

/** Call `make`, and convert any error but our own to a BadInputError with `received` and the error's text. */
export async function withErrorsAsBadInput<T>(
  received: string,
  expected: string,
  remedy: string,
  make: () => T | Promise<T>,
): Promise<T> {
  try {
    return await make();
  } catch (error) {
    if (error instanceof LopaError) throw error;
    return reject(`${received}: ${errorText(error)}`, expected, remedy, error);
  }
}
