/** Byte-pair encoding, the model of tokenizer.json. */

import { bool, choice, int, list, map, nullable, record, text, type Check, type JsonObject, type Reject } from "../bundle/record.js";
import { utf8 } from "./tokenizer_parts.js";

const MAX_ID = 2 ** 24;
const MAX_MERGES = 2 ** 21;
/** Maximum characters of a word in the queue of merges. */
const MAX_PLACES = 2 ** 28;
const none = choice(null, "");
const toggle = nullable(bool);
const MODEL: Check = record(
  { vocab: map(int(0, MAX_ID)), merges: list(() => undefined, MAX_MERGES) },
  {
    ...{ type: choice("BPE"), dropout: choice(null, 0), unk_token: nullable(text(MAX_MERGES)), fuse_unk: toggle },
    ...{ byte_fallback: toggle, ignore_merges: toggle, continuing_subword_prefix: none, end_of_word_suffix: none },
  },
);

export interface BytePairs {
  readonly ids: ReadonlyMap<string, number>;
  /** Id of characters that the vocabulary lacks. */
  readonly unknown: number | undefined;
  /** Return the ids of a word. */
  encode(word: string): number[];
}

/** Return the model in tokenizer.json. Calls `fail` for what differs in Python. */
export function bytePairs(model: JsonObject, fail: Reject): BytePairs {
  choice("BPE", undefined)(model["type"], "model.type", fail);
  MODEL(model, "model", fail);
  const ids = new Map(Object.entries(model["vocab"] as Record<string, number>));
  if (new Set(ids.values()).size < ids.size) fail("model.vocab with two tokens of one id", "");
  const unknown = ids.get(model["unk_token"] as string);
  if (unknown === undefined && (model["unk_token"] ?? null) !== null) fail("model.unk_token outside the vocabulary", "");
  const byteIds = Array.from({ length: 256 }, (_, byte) =>
    ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
  );
  /** Ranks by pair of ids, and ids that the ranks make. */
  const ranks = new Map<number, number>();
  const made: number[] = [];
  const merges = model["merges"] as (string | string[])[];
  for (const merge of merges) {
    const isText = typeof merge === "string";
    if (isText && merge.startsWith("#version") && typeof merges[0] === "string") continue;
    const pair = isText ? merge.split(" ") : merge;
    const [left, right, whole] = [...pair, pair.join("")].map((token) => ids.get(token));
    if (pair.length !== 2 || typeof merge !== typeof merges[0] || whole === undefined || !(left! + right! >= 0)) {
      fail(`model.merges with ${JSON.stringify(merge)}`, "");
    }
    ranks.set(left! * 2 * MAX_ID + right!, made.push(whole) - 1);
  }

  /** Return the ids of the characters of a word, in the library's order. */
  const characters = (word: string): number[] => {
    const found: number[] = [];
    let isUnknown = false;
    const flush = (): void => {
      if (isUnknown) found.push(unknown!);
      isUnknown = false;
    };
    for (const character of word) {
      const id = ids.get(character);
      const bytes = model["byte_fallback"] ? utf8(character).map((byte) => byteIds[byte]!) : [undefined!];
      if (id !== undefined) {
        flush();
        found.push(id);
      } else if (!bytes.includes(undefined!)) {
        found.push(...bytes);
      } else if (unknown !== undefined) {
        if (!model["fuse_unk"]) flush();
        isUnknown = true;
      }
    }
    flush();
    return found;
  };

  const encode = (word: string): number[] => {
    const known = model["ignore_merges"] ? ids.get(word) : undefined;
    if (known !== undefined) return [known];
    const found = characters(word);
    const next = found.map((_, place) => place + 1);
    const previous = found.map((_, place) => place - 1);
    /** Ranks and places of merges. The least is first. */
    const queue: number[] = [];
    const rankAt = (place: number): number => ranks.get(found[place]! * 2 * MAX_ID + found[next[place]!]!)!;
    const offer = (place: number): void => {
      const rank = rankAt(place);
      if (rank !== undefined) push(queue, rank * MAX_PLACES + place);
    };
    found.forEach((_, place) => offer(place));
    while (queue.length) {
      const least = pop(queue);
      const place = least % MAX_PLACES;
      const id = made[(least - place) / MAX_PLACES]!;
      if (made[rankAt(place)] !== id) continue;
      const right = next[place]!;
      found[place] = id;
      found[right] = -1;
      next[place] = next[right]!;
      previous[next[right]!] = place;
      offer(previous[place]!);
      offer(place);
    }
    return found.filter((id) => id >= 0);
  };
  return { ids, unknown, encode };
}

/** Add a value to a heap. */
function push(heap: number[], value: number): void {
  let place = heap.length;
  for (let parent; place && heap[(parent = (place - 1) >> 1)]! > value; place = parent) heap[place] = heap[parent]!;
  heap[place] = value;
}

/** Remove the least value of a heap. */
function pop(heap: number[]): number {
  const least = heap[0]!;
  const value = heap.pop()!;
  let place = 0;
  for (let child; (child = 2 * place + 1) < heap.length; place = child) {
    if (heap[child + 1]! < heap[child]!) child++;
    if (heap[child]! >= value) break;
    heap[place] = heap[child]!;
  }
  if (heap.length) heap[place] = value;
  return least;
}
