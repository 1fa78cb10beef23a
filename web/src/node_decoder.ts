/** A decoder that also opens folders, and imports ONNX Runtime by the name of its package. */

import { Decoder as BrowserDecoder, decoderOf, type OpenOptions } from "./decoder.js";
import { openFolder } from "./bundle/folder.js";
import { MissingBackendError, errorText, reject } from "./errors.js";
import type { Device, OnnxRuntime } from "./sessions/onnxruntime_session.js";

/** A bundle opened on a device. Several requests may be decoded at once; their forwards take turns. */
export class Decoder extends BrowserDecoder {
  /** Open the bundle in a folder (Node) or at an address.
   *
   * The sizes and SHA-256 digests of the files in use are checked. Throws BadInputError and CheckFailedError for an
   * invalid bundle, DownloadFailedError for a failed download, and MissingBackendError for a device that this machine
   * lacks. */
  static override open(location: string | URL, options: OpenOptions = {}): Promise<Decoder> {
    return decoderOf((...parts) => new Decoder(...parts), location, options, { openFolder, importRuntime });
  }
}

/** Return the ONNX Runtime module of a device. Throws MissingBackendError if its package is not installed, and for WebGPU
 * in Node, where onnxruntime-web has none. */
export async function importRuntime(device: Device): Promise<OnnxRuntime> {
  if (device === "webgpu" && (globalThis.navigator as { gpu?: unknown } | undefined)?.gpu === undefined) {
    throw new MissingBackendError("onnxruntime-web has no WebGPU in Node", {
      expected: 'device "cpu" or "wasm", or a browser',
      remedy: 'open the bundle with device "cpu", or pass onnxruntime-node as ort if it finds a GPU',
    });
  }
  const names = { cpu: "onnxruntime-node", wasm: "onnxruntime-web", webgpu: "onnxruntime-web/webgpu" };
  const name = names[device];
  try {
    const found = (await import(name)) as OnnxRuntime & { default?: OnnxRuntime };
    return found.InferenceSession === undefined ? found.default! : found;
  } catch (error) {
    reject(
      `device "${device}" needs the package ${name}: ${errorText(error)}`,
      "an installed ONNX Runtime",
      `npm install ${name.split("/")[0]}, or pass the module as ort`,
      error,
      MissingBackendError,
    );
  }
}
