/** A bundle in a folder or at a URL: its manifest and checked files. */

import { CheckFailedError, DownloadFailedError, errorText, reject, shown, withErrorsAsBadInput } from "../errors.js";
import { IS_NODE } from "../platform.js";
import { MANIFEST_NAME, manifestFromJson, type FileRecord, type GraphTwin, type Manifest } from "./manifest.js";
import { MAX_JSON_BYTES } from "./record.js";

export const REMEDY = "copy the bundle again, or export the checkpoint again";

/** Function that receives the size of each part of a file that arrives. The next part waits for it. */
type OnBytes = (count: number) => unknown;

/** The files of a bundle by name, relative with forward slashes. */
export interface Files {
  /** Folder or URL, for errors. */
  readonly location: string;
  /** Return the content of a file of `min` to `max` bytes. */
  read(name: string, min: number, max: number, onBytes?: OnBytes): Promise<Uint8Array>;
  /** Return the size of a file. Absent if only reading it shows the size. */
  size?(name: string): Promise<number>;
  /** Return the path of a file on this machine and its digest. Absent if it has no path. */
  onDisk?(name: string): Promise<{ path: string; sha256: string }>;
}

/** Function that returns the files of the bundle in a folder. */
export type OpenFolder = (location: string | URL) => Promise<Files>;

/** An opened bundle: its files and checked manifest. */
export interface Bundle {
  readonly files: Files;
  readonly manifest: Manifest;
  /** Return the content of a listed file. Throws BadInputError for another size, and CheckFailedError for another
   * digest. */
  read(name: string): Promise<Uint8Array>;
  /** Return the sum of the sizes of listed files. */
  size(names: readonly string[]): number;
  /** Return the path of a listed file whose digest is right, or null if the bundle is not on this machine. */
  path(name: string): Promise<string | null>;
  /** Return the name of the graph for a provider in place of the graph `source`: the twin that is faster there, if it
   * was made from that graph, otherwise `source`. */
  graphFor(provider: GraphTwin["provider"], source: string): string;
}

/** Open the bundle in a folder (Node) or at a URL. Throws BadInputError if the manifest is missing or invalid, if a file
 * of a folder is missing, or if the schema differs. Only `openFolder` can open folders. `signal` cancels downloads.
 * `onBytes` is for files that are downloaded later. */
export async function openBundle(
  address: string | URL,
  openFolder: OpenFolder | null,
  signal?: AbortSignal | null,
  onBytes?: OnBytes,
): Promise<Bundle> {
  const files = await filesAt(address, openFolder, signal);
  const { location } = files;
  const manifest = manifestFromJson(await files.read(MANIFEST_NAME, 0, MAX_JSON_BYTES), `${location}/${MANIFEST_NAME}`);
  for (const file of manifest.files) {
    checkName(file.path, location);
    checkSize(file, (await files.size?.(file.path)) ?? file.size, location);
  }
  const recordOf = (name: string): FileRecord =>
    manifest.files.find((file) => file.path === name) ??
    reject(`${location} does not list ${shown(name)}`, "a bundle made by lopa-export onnx", REMEDY);
  return {
    files,
    manifest,
    async read(name) {
      const file = recordOf(name);
      const content = await files.read(name, file.size, file.size, onBytes);
      checkSize(file, content.length, location);
      checkDigest(file, await sha256(content), location);
      return content;
    },
    size: (names) => names.reduce((sum, name) => sum + recordOf(name).size, 0),
    async path(name) {
      const found = await files.onDisk?.(name);
      if (!found) return null;
      checkDigest(recordOf(name), found.sha256, location);
      return found.path;
    },
    graphFor(provider, source) {
      const { twins = [], quantization, dtype } = manifest;
      // Scales of int8 are always float32, which a graph for WebGPU in float16 would not take.
      if (provider === "webgpu" && quantization?.["kind"] === "int8" && dtype === "float16") return source;
      const { sha256 } = recordOf(source);
      const own = twins.filter((twin) => twin.source === source && twin.source_sha256 === sha256);
      return own.find((twin) => twin.provider === provider && twin.form !== "mapped")?.graph ?? source;
    },
  };
}

async function filesAt(
  location: string | URL,
  openFolder: OpenFolder | null,
  signal?: AbortSignal | null,
): Promise<Files> {
  const given = typeof location === "string" ? location : (location as URL | undefined)?.href;
  const open = IS_NODE && openFolder;
  if (given && open && !/^https?:/.test(given)) return open(location);
  try {
    if (!given) throw given;
    const base = new URL(given, globalThis.location?.href);
    base.pathname = base.pathname.replace(/\/?$/, "/");
    if (/^https?:/.test(base.href)) return filesAtUrl(base, signal);
  } catch {
    // reported below
  }
  reject(
    `the bundle location ${shown(location)}`,
    `${open ? "a folder, or " : ""}an http or https address`,
    "check the location",
  );
}

/** Return the files below `base`. Each is requested with the query of `base`, which may sign it, so errors leave it out. */
const filesAtUrl = (base: URL, signal?: AbortSignal | null): Files => ({
  location: new URL(".", base).href.slice(0, -1),
  async read(name, min, max, onBytes) {
    const url = new URL(name.split("/").map(encodeURIComponent).join("/"), base);
    const { href } = url;
    url.search = base.search;
    const expected = "a file of the bundle";
    const page = globalThis.location?.origin;
    const cors = page && page !== url.origin ? `, which must allow pages of ${page} (CORS)` : "";
    const remedy = `check the address and the server${cors}`;
    const fail: (problem: string, error?: unknown) => never = (problem, error) =>
      reject(`${href} ${problem}`, expected, `try again, or ${remedy}`, error, DownloadFailedError);
    const onError = (error: unknown): never => {
      signal?.throwIfAborted();
      fail(`cannot be fetched: ${errorText(error)}`, error);
    };
    const { ok, status, body, headers } = await fetch(url, { signal: signal ?? null }).catch(onError);
    const isPage = ok && /^text\/html/i.test(headers.get("content-type") ?? "");
    if (isPage || status === 404 || status === 410) {
      const found = isPage ? "sent as an HTML page" : "missing";
      reject(`${this.location} has no complete bundle: ${name} is ${found} (HTTP status ${status})`, expected, remedy);
    }
    if (!ok || !body) fail(`is not sent (HTTP status ${status})`);
    return contentOfStream(body, href, min, max, onError, onBytes);
  },
});

/** Return the content of a stream of `min` to `max` bytes. The memory for `max` bytes is reserved at once, so that a large
 * file is in memory once. */
async function contentOfStream(
  stream: ReadableStream<Uint8Array>,
  name: string,
  min: number,
  max: number,
  onError: (error: unknown) => never,
  onBytes?: OnBytes,
): Promise<Uint8Array> {
  const content = await withErrorsAsBadInput(
    `no memory for the ${max} bytes of ${name}`,
    "a bundle that fits into memory",
    "use a smaller or quantized bundle",
    () => new Uint8Array(max),
  );
  let size = 0;
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(onError);
      if (done && size < min) onError(new Error(`it ends after ${size} of ${min} bytes`));
      if (done) return size === max ? content : content.slice(0, size);
      size += value.length;
      checkLimit(name, size, max);
      content.set(value, size - value.length);
      await onBytes?.(value.length);
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export function checkLimit(name: string, size: number, max: number): void {
  if (size <= max) return;
  reject(`${name} has more than ${max} bytes`, `at most ${max} bytes`, REMEDY);
}

/** Throw BadInputError for a file name that leaves the bundle or is not Unicode. */
function checkName(name: string, location: string): void {
  if (!/[\\:\0\p{Surrogate}]|(^|\/)(\.\.)?(\/|$)/u.test(name)) return;
  reject(
    `the bundle ${location} names the file ${shown(name)}`,
    "a relative path inside the bundle",
    `do not use this bundle; ${REMEDY}`,
  );
}

function checkSize(file: FileRecord, size: number, location: string): void {
  if (size === file.size) return;
  reject(`${location}/${file.path} has ${size} bytes`, `${file.size} bytes, as listed by the bundle`, REMEDY);
}

function checkDigest(file: FileRecord, digest: string, location: string): void {
  if (digest === file.sha256) return;
  reject(
    `${location}/${file.path} has the SHA-256 ${digest}`,
    `${file.sha256}, as listed by the bundle`,
    REMEDY,
    undefined,
    CheckFailedError,
  );
}

async function sha256(content: Uint8Array): Promise<string> {
  if (!globalThis.crypto?.subtle) {
    reject(
      "this page has no crypto.subtle, which checks digests",
      "a page from https or localhost",
      "serve the page over https",
    );
  }
  const digest = await crypto.subtle.digest("SHA-256", content as Uint8Array<ArrayBuffer>);
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
