// Real tools of the programs in this folder, with the JSON schemas of their arguments.

import assert from "node:assert/strict";

const number = { type: "integer", minimum: 0, maximum: 99 };

/** Schema of the calculator's arguments. */
export const calculation = {
  type: "object",
  properties: { operation: { type: "string", enum: ["add", "subtract"] }, a: number, b: number },
  required: ["operation", "a", "b"],
  additionalProperties: false,
};

/** Schema of a tool without arguments. */
export const nothing = { type: "object", properties: {}, additionalProperties: false };

/** Return the result of a calculation. Throw for arguments that its schema excludes. */
export function calculate(given) {
  assert.deepEqual(Object.keys(given).sort(), ["a", "b", "operation"]);
  for (const each of [given.a, given.b]) assert(Number.isInteger(each) && each >= 0 && each <= 99, String(each));
  assert(["add", "subtract"].includes(given.operation));
  return String(given.operation === "add" ? given.a + given.b : given.a - given.b);
}
