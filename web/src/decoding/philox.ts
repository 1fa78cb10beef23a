/** The counter-based random numbers of numpy's Philox (4 words of 64 bits, 10 rounds). */

import { floor } from "../platform.js";

const WORD = 64;
const [FACTOR_0, FACTOR_1] = [0xd2e7470ee14c6c93n, 0xca5a826395121157n];
const [BUMP_0, BUMP_1] = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn];
const LOW = (1n << 64n) - 1n;
const ROUNDS = 10;
/** Numbers that one counter gives. */
const NUMBERS_PER_BLOCK = 4;

/** Return numbers `start` to `start + count` of `Generator(Philox(key, counter=[0, word1, word2, word3])).random()`. */
export function uniformNumbers(
  key: number | bigint,
  counter: readonly [number, number, number],
  start: number,
  count: number,
): Float64Array {
  const result = new Float64Array(count);
  const words = counter.map(BigInt);
  let block: bigint[] = [];
  for (let index = 0; index < count; index++) {
    const place = (start + index) % NUMBERS_PER_BLOCK;
    if (index === 0 || place === 0) {
      // numpy increments the counter before it makes a block.
      const first = BigInt(floor((start + index) / NUMBERS_PER_BLOCK) + 1);
      block = philoxBlock(BigInt(key), [first, ...words]);
    }
    result[index] = Number(block[place]! >> 11n) / 2 ** 53;
  }
  return result;
}

function philoxBlock(key: bigint, counter: readonly bigint[]): bigint[] {
  let [c0, c1, c2, c3] = counter as [bigint, bigint, bigint, bigint];
  let [key0, key1] = [key & LOW, key >> 64n];
  for (let round = 0; round < ROUNDS; round++) {
    const [first, second] = [FACTOR_0 * c0, FACTOR_1 * c2];
    [c0, c1, c2, c3] = [(second >> 64n) ^ c1 ^ key0, second & LOW, (first >> 64n) ^ c3 ^ key1, first & LOW];
    key0 = BigInt.asUintN(WORD, key0 + BUMP_0);
    key1 = BigInt.asUintN(WORD, key1 + BUMP_1);
  }
  return [c0, c1, c2, c3];
}
