/** The place where this code runs. */

/** True in Node, false in a browser. */
export const IS_NODE = typeof process !== "undefined" && Boolean(process.versions?.node);

/** Return a promise that resolves in a new task. Timers, messages, clicks and frames that wait get their turn before it.
 *
 * A timeout would take 4 ms. scheduler.yield would continue before other tasks, so that timers could wait for ever. */
export const nextTask = (): Promise<void> =>
  new Promise((resolve) => {
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

/** Functions with names that bundlers shorten. */
export const { ceil, floor, fround, max, min } = Math;
