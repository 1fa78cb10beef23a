/** The contract on ONNX Runtime: onnxruntime-node, or onnxruntime-web with WebAssembly or WebGPU. */

import type * as Ort from "onnxruntime-common";

import type { Bundle } from "../bundle/bundle.js";
import { filesOfTwin } from "../bundle/webgpu_twin.js";
import { MissingBackendError, errorText, reject } from "../errors.js";
import { IS_NODE } from "../platform.js";
import type { GpuDevice } from "./row_memory.js";
import type { Dialect, OnnxRuntime } from "./graph_inputs.js";
import { onnxGraph, rowNames } from "./onnx_graph.js";
import { Session } from "./session.js";

export type { OnnxRuntime };

/** cpu: onnxruntime-node. wasm and webgpu: onnxruntime-web, or WebGPU of onnxruntime-node. */
export type Device = "cpu" | "wasm" | "webgpu";
export const DEVICES: readonly Device[] = ["cpu", "wasm", "webgpu"];

/** Open the bundle's graph on a device. `ort` returns the module onnxruntime-node or onnxruntime-web.
 *
 * Throws MissingBackendError for a device that this machine lacks, and BadInputError for a bundle that ONNX Runtime
 * cannot open. */
export async function openSession(
  bundle: Bundle,
  ort: () => Promise<OnnxRuntime>,
  device: Device,
  threads: number | undefined,
): Promise<Session> {
  const { manifest, files } = bundle;
  checkBundle(bundle);
  if (device === "webgpu") await checkWebgpu();
  const runtime = await ort();
  if (device === "wasm" && threads) runtime.env.wasm.numThreads = threads;
  const [dialect, graph] = graphForDevice(bundle, device);
  // In a portable graph every node runs on the GPU, so its caches can be there too.
  const hasDeviceCaches = device === "webgpu" && dialect === "portable" && !IS_NODE;
  const opened = await openGraph(bundle, runtime, graph, {
    executionProviders: [device],
    logSeverityLevel: 3,
    ...(threads ? { intraOpNumThreads: threads } : {}),
    ...(hasDeviceCaches
      ? { preferredOutputLocation: Object.fromEntries(rowNames(manifest).map((name) => [name, "gpu-buffer" as const])) }
      : {}),
    // Products with dequantized matrices leave the other factor in float32, as Python's sessions do.
    extra: { session: { qdq_matmulnbits_accuracy_level: "1" } },
  });
  const gpu = hasDeviceCaches ? ((await runtime.env.webgpu.device) as unknown as GpuDevice) : null;
  return new Session(device, onnxGraph(runtime, opened, manifest, dialect, gpu, files.location));
}

/** Return the names of the files that `openSession` reads. */
export const filesOfSession = (bundle: Bundle, device: Device): string[] => [
  graphForDevice(bundle, device)[1],
  bundle.manifest.weights,
];

/** Return the dialect and the name of the graph for a device: the portable one for WebGPU, if there is one, otherwise
 * the standard one. Each is in the form that is fastest there. */
function graphForDevice(bundle: Bundle, device: Device): [Dialect, string] {
  const { dialect, graph, portable_graph: second } = bundle.manifest;
  const portable = dialect === "portable" ? graph : second;
  if (device === "webgpu") return portable ? ["portable", bundle.graphFor("webgpu", portable)] : ["standard", graph];
  return dialect === "portable" ? ["portable", graph] : ["standard", bundle.graphFor("cpu", graph)];
}

/** Throw BadInputError for a bundle whose type ONNX Runtime lacks here. */
function checkBundle({ manifest, files }: Bundle): void {
  if (manifest.dtype !== "bfloat16") return;
  reject(
    `${files.location} is in bfloat16`,
    "a bundle in float32 or float16",
    "export the checkpoint again with --dtype float32 or float16",
  );
}

async function checkWebgpu(): Promise<void> {
  if (IS_NODE) return; // onnxruntime-node finds adapters itself
  const gpu = (globalThis.navigator as { gpu?: { requestAdapter(): Promise<unknown> } } | undefined)?.gpu;
  const adapter = await gpu?.requestAdapter();
  if (adapter) return;
  reject(
    gpu ? "WebGPU has no adapter here" : "this browser has no WebGPU",
    "a browser with WebGPU, on a page from https or localhost",
    'use device "wasm", or another browser',
    undefined,
    MissingBackendError,
  );
}

async function openGraph(
  bundle: Bundle,
  runtime: OnnxRuntime,
  graph: string,
  options: Ort.InferenceSession.SessionOptions,
): Promise<Ort.InferenceSession> {
  const { weights, twins = [] } = bundle.manifest;
  const isWeb = options.executionProviders?.[0] !== "cpu";
  const path = isWeb ? null : await bundle.path(graph);
  if (path) await bundle.path(weights);
  const content = path ?? (await bundle.read(graph));
  let values: Pick<Ort.InferenceSession.SessionOptions, "externalData"> = {};
  if (!path) {
    const data = await bundle.read(weights);
    const isTwin = twins.some((twin) => twin.graph === graph && twin.provider === "webgpu");
    const own = isTwin ? filesOfTwin(content as Uint8Array, data, bundle.manifest) : [];
    values = { externalData: [{ path: weights, data }, ...own] };
  }
  try {
    return await runtime.InferenceSession.create(content as Uint8Array, { ...options, ...values });
  } catch (error) {
    const problem = errorText(error);
    const isRuntime = problem.includes("no available backend");
    reject(
      `ONNX Runtime cannot ${isRuntime ? "start" : `open ${graph} of ${bundle.files.location}`}: ${problem}`,
      isRuntime ? "ort for this device, and its .wasm file" : "a graph made by lopa-export, and a runtime with this device",
      isRuntime
        ? "serve the file, set ort.env.wasm.wasmPaths, or allow 'wasm-unsafe-eval'"
        : "check the bundle with lopa-export verify, use a smaller or quantized one, or update ONNX Runtime",
      error,
      isRuntime ? MissingBackendError : undefined,
    );
  }
}
