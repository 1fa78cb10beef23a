/** Chat templates, rendered by the package @huggingface/jinja 0.5.11 where it agrees with Python's jinja2.
 *
 * The package ignores the characters of strip(), writes None as nothing and True as true, finds none equal to undefined
 * and a text equal to a number, keeps variables of one round of a loop for the next but not its text before break and
 * continue, and writes months in the language of the browser. Here these are Python's. Other features that differ throw an Error. */

import { Environment, Interpreter, parse, tokenize } from "@huggingface/jinja";
import { ceil, max } from "../platform.js";

/** A node or a value, whose types are private to the package. */
type Any = any; // eslint-disable-line @typescript-eslint/no-explicit-any

const SPACE = /[\p{White_Space}\x1c-\x1f]/u;
const SIDES: Readonly<Record<string, number>> = { lstrip: 1, rstrip: 2, strip: 3 };
/** Methods and filters that differ, and what none of them treats differently: roles, for example. */
const DIFFERENT = /^(title|capitalize|int|float|unique|indent)$/;
const SIMPLE = /^([a-z]*|\d{1,9})$/;
const LINES = /^[^\r\v\f\x1c-\x1e\x85\u2028\u2029]*$/;
/** Maximum characters of a text in an error. */
const MAX_SHOWN = 80;
const CONSTANTS = { true: true, false: false, none: null, True: true, False: false, None: null };

/** Return a function that renders `template` with variables. */
export function renderer(template: string): (names: Readonly<Record<string, unknown>>) => string {
  const program = parse(tokenize(template.replace(/\r\n?/g, "\n"), { lstrip_blocks: true, trim_blocks: true }));
  return (names) => {
    const scope = new Environment();
    const variables = { ...CONSTANTS, range, raise_exception: raise, strftime_now: formattedNow, ...names };
    for (const [name, value] of Object.entries(variables)) scope.set(name, value);
    return new PythonInterpreter(scope).run(program).value as string;
  };
}

class PythonInterpreter extends (Interpreter as unknown as new (scope: Environment) => Any) {
  evaluate(node: Any, scope: Any): Any {
    const ends = node?.type === "Break";
    if (node?.type === "Value") return node.of;
    if (!ends && node?.type !== "Continue") return super.evaluate(node, scope);
    let end;
    try {
      super.evaluate(node, scope);
    } catch (error) {
      end = error;
    }
    throw { end, ends, text: "" };
  }

  evaluateBlock(nodes: Any, scope: Any): Any {
    if (nodes.end) throw nodes.end;
    const inner = nodes.isRound ? new Environment(scope) : scope;
    let text = "";
    try {
      for (const node of nodes) {
        const value = this.evaluate(node, inner);
        if (!/Set|Macro|Comment/.test(node.type)) text += printed(value);
      }
    } catch (error: Any) {
      if (!error.end) throw error;
      // The package drops what a round wrote before its break or continue. A break ends the loop at its next round.
      text += error.text;
      if (!nodes.isRound) throw { ...error, text };
      if (error.ends) nodes.end = error.end;
    }
    return made(text);
  }

  evaluateFor(node: Any, scope: Any): Any {
    const { end } = node.body;
    Object.assign(node.body, { isRound: true, end: undefined });
    const text = super.evaluateFor(node, scope);
    node.body.end = end;
    return text;
  }

  evaluateMemberExpression(node: Any, scope: Any): Any {
    const of = this.evaluate(node.object, scope);
    const name = node.computed ? "" : node.property.value;
    const sides = SIDES[name];
    if (sides && of.type === "StringValue") return made((cut?: string) => stripped(of.value, sides, cut));
    if (of.type === "UndefinedValue") reject(`.${name} of ${of.type}`);
    if (of.type === "StringValue") checkUse(of, name);
    return super.evaluateMemberExpression({ ...node, object: { type: "Value", of } }, scope);
  }

  evaluateBinaryExpression(node: Any, scope: Any): Any {
    const operator = node.operator.value;
    if (/and|or/.test(operator)) return super.evaluateBinaryExpression(node, scope);
    const [left, right] = [node.left, node.right].map((each) => ({ type: "Value", of: this.evaluate(each, scope) }));
    const [one, other] = [left!.of, right!.of];
    if (operator === "%" && (one.value < 0 || other.value < 0)) reject("% below 0");
    if (operator === "~") return made(printed(one) + printed(other));
    const isSame = kind(one) === kind(other);
    if (/[!=]=/.test(operator) && !(isSame && one.value instanceof Object)) {
      return made((isSame && one.value == other.value) === (operator === "=="));
    }
    if (/[!=]=/.test(operator) || (operator === "+" && !isSame)) reject(`${one.type} ${operator} ${other.type}`);
    return super.evaluateBinaryExpression({ ...node, left, right }, scope);
  }

  applyFilter(of: Any, filter: Any, scope: Any): Any {
    const name = filter.value ?? filter.callee.value;
    const isText = of.type === "StringValue";
    if (name === "string") return made(printed(of));
    if (isText && filter.value === "trim") return made(stripped(of.value, 3));
    if (isText && name === "length") return made([...of.value].length);
    checkUse(of, name);
    return super.applyFilter(name === "join" && of.value.map ? made(of.value.map(printed)) : of, filter, scope);
  }
}

/** Throw an Error if the method or filter `name` may treat a value differently. */
function checkUse({ value }: Any, name: string): void {
  const text = value?.join?.("") ?? String(value);
  const isSame = !DIFFERENT.test(name) || (name === "indent" ? LINES : SIMPLE).test(text);
  if (!isSame) reject(`${name} of ${JSON.stringify(text.slice(0, MAX_SHOWN))}`);
}

function raise(message: string): never {
  throw new Error(message);
}

function reject(feature: string): never {
  return raise(`${feature} is not supported`);
}

/** Return a value of the package. */
const made = (value: unknown): Any => new Environment().set("", value);

const kind = ({ type }: Any): string => (/Int|Flo|Boo/.test(type) ? "number" : type);

/** Return what Python writes for a value. */
function printed(of: Any): string {
  if (of.value instanceof Object) reject(`a text of ${of.type}`);
  const names: Record<string, string> = { NullValue: "None", UndefinedValue: "", BooleanValue: of.value ? "True" : "False" };
  return names[of.type] ?? (of.toString() as string);
}

/** Return `text` without the characters `cut` at its ends: `sides` is 1 for the left end, 2 for the right one, or 3. */
function stripped(text: string, sides: number, cut?: string | null): string {
  const all = [...text];
  const isCut = (each?: string): boolean => each !== undefined && (cut == null ? SPACE.test(each) : cut.includes(each));
  while (sides & 1 && isCut(all[0])) all.shift();
  while (sides & 2 && isCut(all.at(-1))) all.pop();
  return all.join("");
}

function range(first: number, second?: number, step = 1): readonly number[] {
  const start = second === undefined ? 0 : first;
  return Array.from({ length: max(0, ceil(((second ?? first) - start) / step)) }, (_, index) => start + index * step);
}

/** Return the local time, formatted as Python's strftime does. */
function formattedNow(format: string): string {
  const now = new Date();
  const [a, b, d, Y, time] = now.toString().split(" ");
  const [H, M, S] = time!.split(":");
  const m = String(now.getMonth() + 1).padStart(2, "0");
  const parts: Record<string, unknown> = { a, b, d, Y, H, M, S, m, B: now.toLocaleString("en", { month: "long" }) };
  return format.replace(/%(.)/g, (text, name: string) => String(parts[name] ?? reject(text)));
}
