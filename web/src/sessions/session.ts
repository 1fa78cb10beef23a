/** A bundle's graph on a device. Requests take turns, since ONNX Runtime runs one forward at a time. */

import type { Forwards } from "../decoding/decoding.js";
import { EngineFailedError, LopaError, errorText, reject } from "../errors.js";

/** A graph that computes forwards. */
export interface Graph {
  /** Return the forwards of a new request, with an empty prefix cache. */
  request(device: string): Forwards;
  close(): Promise<void>;
}

export class Session {
  #last: Promise<unknown> = Promise.resolve();

  constructor(
    readonly device: string,
    private readonly graph: Graph,
  ) {}

  /** Return the forwards of a new request, with an empty prefix cache. */
  request(): Forwards {
    const own = this.graph.request(this.device);
    return {
      device: this.device,
      forward: (windows, temperature) => this.#inTurn(() => own.forward(windows, temperature)),
      commit: (branch, count) => this.#inTurn(() => own.commit(branch, count)),
      shorten: (count) => this.#inTurn(() => own.shorten(count)),
      release: () => this.#inTurn(() => own.release()),
    };
  }

  /** Free the graph after the forwards that run or wait. */
  async close(): Promise<void> {
    await this.#inTurn(() => this.graph.close());
  }

  /** Run `task` after all earlier ones. Throws EngineFailedError for an error that is not ours. */
  async #inTurn<T>(task: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(task);
    this.#last = turn.catch(() => undefined);
    try {
      return await turn;
    } catch (error) {
      if (error instanceof LopaError) throw error;
      reject(
        `${this.device} failed: ${errorText(error)}`,
        "a forward without errors",
        "open the bundle again, or use another device",
        error,
        EngineFailedError,
      );
    }
  }
}
