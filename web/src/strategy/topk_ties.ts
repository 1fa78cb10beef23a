/** The choice of torch.topk among equal values, which published rules depend on (docs/reference/algorithm.md,
 * section 12): Hoare's find with the median of three as pivot. */

import { floor, max } from "../platform.js";

/** Length up to which values are sorted by insertion. */
const SMALL = 3;

/** Return the indices of the `count` largest of `values`, unordered, with the ties of torch.topk on a CPU. */
export function indicesOfTopk(values: readonly number[], count: number): number[] {
  const order = values.map((_, index) => index);
  if (count <= 0 || count >= order.length) return order.slice(0, max(0, count));
  let [first, last] = [0, order.length];
  while (last - first > SMALL) {
    const cut = partition(values, order, first, last);
    if (cut <= count - 1) first = cut;
    else last = cut;
  }
  const part = order.slice(first, last).sort((one, other) => values[other]! - values[one]!);
  order.splice(first, part.length, ...part);
  return order.slice(0, count);
}

/** Partition order[first:last] around the median of three of its values. Return the start of the second part. */
function partition(values: readonly number[], order: number[], first: number, last: number): number {
  const before = (one: number, other: number): boolean => values[order[one]!]! > values[order[other]!]!;
  const swap = (one: number, other: number): void => {
    [order[one], order[other]] = [order[other]!, order[one]!];
  };
  const [one, middle, three] = [first + 1, first + floor((last - first) / 2), last - 1];
  const median = before(one, middle)
    ? before(middle, three)
      ? middle
      : before(one, three)
        ? three
        : one
    : before(one, three)
      ? one
      : before(middle, three)
        ? three
        : middle;
  swap(first, median);
  let [low, high] = [first + 1, last];
  for (;;) {
    while (before(low, first)) low++;
    high--;
    while (before(first, high)) high--;
    if (low >= high) return low;
    swap(low, high);
    low++;
  }
}
