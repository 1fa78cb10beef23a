/** Matrices with which WebGPU runs a quantized bundle, so that its weights stay 4 or 8 bits in device memory.
 *
 * ONNX Runtime's WebGPU provider does not fuse DequantizeLinear and MatMul. The twin of a portable graph multiplies by
 * MatMulNBits, whose matrices have another order than the weights file. */

import { reject } from "../errors.js";
import { REMEDY } from "./bundle.js";
import type { Manifest, TensorRecord } from "./manifest.js";
import { ceil, floor } from "../platform.js";

/** A file with values of a graph, by the name that the graph has for it. */
export interface ValueFile {
  readonly path: string;
  readonly data: Uint8Array;
}

/** Number of inputs that share a scale in MatMulNBits. */
const BLOCK = 32;
/** Name of the file of all values that a session computes. It has as many bytes as the names of `fileName`. */
const GIVEN_BY_SESSION = "given.by.session";
/** Fields of ONNX's protobuf messages. */
const GRAPH = 7;
const INITIALIZER = 5;
const NAME = 8;
const EXTERNAL_DATA = 13;
const ENTRY_VALUE = 2;
const BITS: Readonly<Record<string, number>> = { float32: 32, float16: 16, int8: 8, int4: 4 };

/** Return the files of all values that the twin `graph` takes from the session. Their names are put into `graph`.
 *
 * Throws BadInputError if a record does not fit the weights or its scales. */
export function filesOfTwin(graph: Uint8Array, weights: Uint8Array, { tensors }: Manifest): ValueFile[] {
  const names = namesOfGivenValues(graph);
  const files = [];
  for (const [name, record] of Object.entries(tensors)) {
    const path = names.get(name);
    const scales = tensors[`${name}_scale`];
    const scalePath = names.get(`${name}_scale`);
    if (!path || !scalePath) continue;
    const [inputs = 0, outputs = 0] = record.shape;
    const isInt4 = record.dtype === "int4";
    const blocks = inputs / BLOCK;
    const shape = isInt4 ? [blocks, outputs] : [outputs];
    if (!scales || !Number.isInteger(blocks) || String(scales.shape) !== String(shape)) rejectRecord(name);
    const reordered = isInt4 ? reorderedInt4 : reorderedInt8;
    files.push({ path, data: reordered(bytesOf(name, record, weights), inputs, outputs) });
    const stored = bytesOf(name, scales, weights).buffer;
    const numbers = scales.dtype === "float16" ? new Uint16Array(stored) : new Uint32Array(stored);
    files.push({ path: scalePath, data: scalesByOutput(numbers, outputs, blocks) });
  }
  return files;
}

/** Return int4 numbers, stored [inputs, outputs] with two per byte, as [outputs, inputs] plus 8. */
export function reorderedInt4(stored: Uint8Array, inputs: number, outputs: number): Uint8Array {
  const result = new Uint8Array(stored.length);
  const number = (index: number): number => (stored[index >>> 1]! >> (4 * (index & 1))) & 15;
  for (let pair = 0; pair < inputs / 2; pair++) {
    const first = 2 * pair * outputs;
    for (let output = 0; output < outputs; output++) {
      const both = number(first + output) | (number(first + outputs + output) << 4);
      result[(output * inputs) / 2 + pair] = both ^ 0x88;
    }
  }
  return result;
}

/** Return int8 numbers, stored [inputs, outputs], as [outputs, inputs] plus 128. */
export function reorderedInt8(stored: Uint8Array, inputs: number, outputs: number): Uint8Array {
  const result = new Uint8Array(stored.length);
  for (let input = 0; input < inputs; input++) {
    for (let output = 0; output < outputs; output++) {
      result[output * inputs + input] = stored[input * outputs + output]! ^ 0x80;
    }
  }
  return result;
}

/** Return scales [outputs, blocks] as bytes. They are stored [blocks, outputs], or [outputs] for all blocks. */
function scalesByOutput(stored: Uint16Array | Uint32Array, outputs: number, blocks: number): Uint8Array {
  const numbers = outputs * blocks;
  const result = stored.BYTES_PER_ELEMENT === 2 ? new Uint16Array(numbers) : new Uint32Array(numbers);
  for (let index = 0; index < numbers; index++) {
    const [output, block] = [floor(index / blocks), index % blocks];
    result[index] = stored[(block * outputs + output) % stored.length]!;
  }
  return new Uint8Array(result.buffer);
}

/** Return a copy of the stored bytes of a tensor. */
function bytesOf(name: string, { dtype, shape, offset, length }: TensorRecord, weights: Uint8Array): Uint8Array {
  const size = ceil((shape.reduce((product, each) => product * each, 1) * (BITS[dtype] ?? 0)) / 8);
  if (size !== length || offset + length > weights.length) rejectRecord(name);
  return weights.slice(offset, offset + length);
}

function rejectRecord(name: string): never {
  reject(
    `the manifest's record of ${name} does not fit the weights`,
    "the sizes and scales of the weights file",
    REMEDY,
  );
}

/** Give each value that the session computes a file name of its own, and return the file names by the values' names. */
function namesOfGivenValues(graph: Uint8Array): Map<string, string> {
  const names = new Map<string, string>();
  const text = ({ start, end }: Field): string => new TextDecoder().decode(graph.subarray(start, end));
  for (const initializer of fieldsAt(graph, { start: 0, end: graph.length }, [GRAPH, INITIALIZER])) {
    const [name] = fieldsAt(graph, initializer, [NAME]);
    const given = fieldsAt(graph, initializer, [EXTERNAL_DATA, ENTRY_VALUE]);
    const location = given.find((value) => text(value) === GIVEN_BY_SESSION);
    if (!name || !location) continue;
    const path = `given.by.${String(names.size).padStart(7, "0")}`;
    graph.set(new TextEncoder().encode(path), location.start);
    names.set(text(name), path);
  }
  return names;
}

/** First and end byte of a field's content. */
interface Field {
  readonly start: number;
  readonly end: number;
}

/** Return the strings and messages at a path of field numbers inside a protobuf message. */
function fieldsAt(bytes: Uint8Array, message: Field, path: readonly number[]): Field[] {
  const [number, ...rest] = path;
  if (number === undefined) return [message];
  const found: Field[] = [];
  let place = message.start;
  const varint = (): number => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = bytes[place++] ?? 0;
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (place < message.end) {
    const key = varint();
    const type = key % 8;
    const size = type === 2 ? varint() : type === 1 ? 8 : type === 5 ? 4 : 0;
    if (type === 0) varint();
    if (type === 2 && floor(key / 8) === number) {
      found.push(...fieldsAt(bytes, { start: place, end: place + size }, rest));
    }
    place += size;
  }
  return found;
}
