/** The place where this code runs. */

import type { Files } from "./bundle/bundle.js";
import type { Device, OnnxRuntime } from "./sessions/onnxruntime_session.js";

/** True in Node, false in a browser. */
export const IS_NODE = typeof process !== "undefined" && Boolean(process.versions?.node);

/** Parts that index.js has and browser.js lacks, because bundlers for browsers fail on their imports. */
export interface Loaders {
  /** Return the files of the bundle in a folder. */
  filesInFolder(location: string | URL): Promise<Files>;
  /** Return the ONNX Runtime module of a device by the name of its package. */
  importRuntime(device: Device): Promise<OnnxRuntime>;
}

/** Return a promise that resolves in a new task. Timers, messages, clicks and frames that wait get their turn before it.
 *
 * A timeout would take 4 ms. scheduler.yield would continue before other tasks, so that timers could wait for ever. */
export function nextTask(): Promise<void> {
  return new Promise((resolve) => {
    if (IS_NODE) {
      setImmediate(resolve);
      return;
    }
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
