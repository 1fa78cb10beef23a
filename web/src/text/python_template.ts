/** Chat templates, rendered as Python's jinja2 renders them with trim_blocks, lstrip_blocks and loop controls.
 *
 * A template is parsed into functions of its variables. Whatever is not known to be jinja2's is rejected by name. */

import {
  applied,
  attributeOf,
  budget,
  called,
  charge,
  checkAttribute,
  checkedOfLoop,
  computed,
  condition,
  FILTERS,
  FUNCTIONS,
  isEqual,
  isIn,
  isLess,
  isTrue,
  itemOf,
  itemsOf,
  joined,
  Loop,
  mapFrom,
  METHODS,
  Namespace,
  negated,
  numberFrom,
  operation,
  printed,
  raise,
  reject,
  sliceOf,
  SPACE,
  stripped,
  TESTS,
  Text,
  Tuple,
  valueOf,
  weigh,
  type Callable,
  type Value,
} from "./python_values.js";

/** Variables by name. A scope inherits those of the scope around it. */
type Scope = Record<string, Value>;
type Expression = (scope: Scope) => Value;
type Output = (Text | string)[];
/** Statements, which return BREAK or CONTINUE if they end a round of a loop. */
type Block = (scope: Scope, out: Output) => number | void;
interface Token {
  /** "data", "string", "number", "end", or "" for names, operators and both ends of tags. */
  readonly kind: string;
  readonly text: string;
}
interface Arguments {
  readonly count: number;
  readonly names: readonly string[];
  readonly values: (scope: Scope) => [Value[], Record<string, Value>];
}

/** Maximum characters of a template, three times the largest known one. */
const MAX_TEMPLATE = 100_000;
/** Units of the budget for a token of a template; all units for no message, for a character and for a message. */
const TOKEN = 25;
const UNITS = 10_000_000;
const UNITS_PER_CHARACTER = 256;
const VISITS_PER_MESSAGE = 4;
const BREAK = 1;
const CONTINUE = 2;
const RESERVED =
  /^(and|or|not|in|is|if|else|elif|self|super|caller|varargs|kwargs|true|false|none|True|False|None|loop)$/;
const CONSTANTS: ReadonlyMap<string, Value> = new Map(
  Object.entries({ true: true, True: true, false: false, False: false, none: null, None: null }),
);
/** Variables of all templates. */
const GIVEN =
  /^(messages|tools|documents|add_generation_prompt|range|dict|namespace|raise_exception|strftime_now|.*_token)$/;

const sticky = ({ source }: RegExp): RegExp => new RegExp(source.replaceAll("\\s", SPACE), "uy");
const TAG = sticky(/([^]*?)(\{[%{#])([-+]?)((?<=\{%[-+]?)\s*raw\s*(?:-%\}\s*|%\}))?/);
const RAW = sticky(/([^]*?)\{%([-+]?)\s*endraw\s*(?:\+%\}|-%\}\s*|%\}\n?)/);
const COMMENT = sticky(/[^]*?(?:\+#\}|-#\}\s*|#\}\n?)/);
const END_OF_OUTPUT = sticky(/\s*(?:-\}\}\s*|\}\})/);
const END_OF_BLOCK = sticky(/\s*(?:\+%\}|-%\}\s*|%\}\n?)/);
const NUMBER = sticky(/\s*((?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?!\w)/);
const STRING = sticky(/\s*('(?:[^'\\]|\\[^])*'|"(?:[^"\\]|\\[^])*")/);
const SYMBOL = sticky(/\s*([A-Za-z_]\w*|\*\*|\/\/|[=!<>]=|[-+*\/%~()[\]{}<>=.:|,])/);
const ESCAPES: Readonly<Record<string, string>> = {
  ...{ n: "\n", t: "\t", r: "\r", a: "\x07", b: "\b", f: "\f", v: "\v", "\n": "" },
  ...{ "'": "'", '"': '"', "\\": "\\" },
};

/** Return all texts that the template may write itself, unescaped and in jinja2's order. */
export const textsOf = (template: string): string => parsed(template).texts.join("");

/** Return a function that renders `template` with variables, messages and tools of JSON, within a budget. */
export function renderer(template: string): (names: object, messages: readonly unknown[], tools?: unknown) => Text {
  const { program, size } = parsed(template);
  return (names, messages, tools = null) => {
    const scope: Scope = Object.assign(Object.create(null), FUNCTIONS);
    for (const [name, value] of Object.entries(names)) scope[name] = valueOf(value, true);
    scope["tools"] = valueOf(tools, false);
    scope["messages"] = messages.map((each) => valueOf(each, false));
    // Some templates write a role into a control token.
    for (const each of scope["messages"]) each.get("role")[1] = new Text(each.get("role")[1].text);
    budget.units = Infinity;
    const characters = weigh([scope["messages"], scope["tools"]]);
    budget.units = UNITS + UNITS_PER_CHARACTER * characters + TOKEN * VISITS_PER_MESSAGE * size * messages.length;
    return textOf(program, scope);
  };
}

function tokensOf(template: string): Token[] {
  if (template.length > MAX_TEMPLATE) reject(`a template of more than ${MAX_TEMPLATE} characters`);
  const source = template.replace(/\r\n?/g, "\n").replace(/\n$/, "");
  const tokens: Token[] = [];
  let at = 0;
  let isLineStart = true;
  const match = (expected: RegExp): RegExpExecArray | null => {
    expected.lastIndex = at;
    const found = expected.exec(source);
    if (found) at = expected.lastIndex;
    return found;
  };
  const add = (text: string, sign: string, isTag: boolean): void => {
    const line = text.lastIndexOf("\n") + 1;
    if (sign === "-") text = stripped(new Text(text), 2).text;
    else if (!sign && isTag && (line || isLineStart) && !stripped(new Text(text.slice(line)), 3).text)
      text = text.slice(0, line);
    if (text) tokens.push({ kind: "data", text });
  };
  const end = (found: RegExpExecArray | null): RegExpExecArray => {
    isLineStart = (found ?? raise("a tag without an end"))[0].endsWith("\n");
    return found!;
  };
  for (let found; (found = match(TAG));) {
    const [, text, tag, sign, raw] = found as unknown as [string, string, string, string, string?];
    add(text, sign, tag !== "{{");
    if (raw) {
      end(found);
      const inner = match(RAW) ?? raise("raw without endraw");
      add(inner[1]!, inner[2]!, true);
      end(inner);
    } else if (tag === "{#") {
      end(match(COMMENT));
    } else {
      tokens.push({ kind: "", text: tag });
      const last = tag === "{{" ? END_OF_OUTPUT : END_OF_BLOCK;
      for (let depth = 0, found; !(found = depth ? null : match(last)) || !end(found);) {
        if ((found = match(NUMBER))) tokens.push({ kind: "number", text: found[1]! });
        else if ((found = match(STRING))) tokens.push({ kind: "string", text: unescaped(found[1]!.slice(1, -1)) });
        else {
          const text = (match(SYMBOL) ?? reject(JSON.stringify(source.slice(at, at + 9))))[1]!;
          depth += /^[([{]/.test(text) ? 1 : /^[)\]}]/.test(text) ? -1 : 0;
          tokens.push({ kind: "", text });
        }
      }
      tokens.push({ kind: "", text: tag === "{{" ? "}}" : "%}" });
    }
  }
  add(source.slice(at), "+", false);
  return [...tokens, { kind: "end", text: "the end" }];
}

/** Return what a text between quotes means in Python. */
const unescaped = (text: string): string =>
  text.replace(/\\(x[\da-fA-F]{2}|u[\da-fA-F]{4}|[^])/gu, (all, escape: string) => {
    if (escape.length > 1 && !/^ud[89a-f]/i.test(escape)) return String.fromCharCode(parseInt(escape.slice(1), 16));
    return ESCAPES[escape] ?? (/^[^\dxuUN\x80-\uffff]$/.test(escape) ? all : reject(`the escape ${all}`));
  });

function parsed(template: string): { program: Block; size: number; texts: readonly string[] } {
  const tokens = tokensOf(template);
  let at = 0;
  let isInLoop = false;
  /** Names that the frame has loaded or stored, and those that frames in it have. */
  let frame = { own: new Set<string>(), inner: new Set<string>() };
  const texts: string[] = [];
  /** Move the texts between two places to the end, where jinja2 has them. */
  const moveTexts = (from: number, to: number): void => void texts.push(...texts.splice(from, to - from));
  const functions = new Set(Object.keys(FUNCTIONS));
  const calls = new Set<string>();

  const is = (...texts: readonly string[]): boolean => tokens[at]!.kind === "" && texts.includes(tokens[at]!.text);
  const skip = (text: string): boolean => is(text) && Boolean((at += 1));
  const expect = (text: string): void => {
    if (!skip(text)) raise(`${JSON.stringify(tokens[at]!.text)} in place of ${JSON.stringify(text)}`);
  };
  const word = (): string => {
    const { kind, text } = tokens[at++]!;
    return !kind && /^\w/.test(text) ? text : raise(`${JSON.stringify(text)} in place of a name`);
  };

  const newName = (): string => {
    const name = word();
    return RESERVED.test(name) ? reject(`the variable ${name}`) : name;
  };
  const store = (name: string): void => {
    // There, jinja2 does not find the variable that the template was given.
    if (GIVEN.test(name) && frame.inner.has(name) && !frame.own.has(name))
      reject(`a new value of ${name} behind its use in a block`);
    frame.own.add(name);
    functions.add(name);
  };
  /** Parse what has its own variables. */
  const scoped = <Result>(names: readonly string[], parse: () => Result, isLoop = false): Result => {
    const outer = { frame, isInLoop };
    frame = { own: new Set(names), inner: new Set() };
    isInLoop = isLoop;
    const result = parse();
    for (const name of [...frame.own, ...frame.inner]) outer.frame.inner.add(name);
    ({ frame, isInLoop } = outer);
    return result;
  };

  const targets = (): [names: string[], isTuple: boolean] => {
    const names = [newName()];
    const isTuple = is(",");
    while (skip(",") && !is("in", "=")) names.push(newName());
    return [names, isTuple];
  };
  const assign = (scope: Scope, [names, isTuple]: [string[], boolean], value: Value): void => {
    const values = isTuple ? itemsOf(value) : [value];
    if (values.length !== names.length) raise(`${values.length} values for ${names.length} names`);
    names.forEach((name, index) => (scope[name] = values[index]));
  };

  /** Parse statements up to a tag among `ends`, and return its name too. */
  const block = (...ends: readonly string[]): [Block, string] => {
    const parts: Block[] = [];
    let end;
    while (end === undefined) {
      const { kind, text } = tokens[at++]!;
      if (kind === "data") {
        texts.push(text);
        parts.push((_, out) => void out.push(text));
      } else if (text === "{{") {
        const value = tuple();
        expect("}}");
        parts.push((scope, out) => void out.push(printed(value(scope))));
      } else {
        const name = kind ? "" : word();
        if (ends.includes(name)) end = name;
        else parts.push((STATEMENTS.get(name) ?? reject(kind ? "a block without an end" : `the tag ${name}`))());
      }
    }
    const run: Block = (scope, out) => {
      for (const part of parts) {
        const signal = part(scope, out);
        if (signal) return signal;
      }
    };
    return [run, end];
  };
  /** Parse the rest of a tag, the statements behind it, and the tag that ends them. */
  const body = (end: string): Block => {
    expect("%}");
    const [found] = block(end);
    expect("%}");
    return found;
  };

  const STATEMENTS = new Map<string, () => Block>(
    Object.entries({
      if: () => {
        const branches: [Expression, Block][] = [];
        let [test, end]: [Expression, string] = [tuple(or), ""];
        while (end !== "endif") {
          expect("%}");
          const [found, name] = end === "else" ? block("endif") : block("elif", "else", "endif");
          branches.push([test, found]);
          end = name;
          test = end === "elif" ? tuple(or) : () => true;
        }
        expect("%}");
        return (scope, out) => branches.find(([test]) => isTrue(test(scope)))?.[1](scope, out);
      },
      for: () => {
        const start = at;
        const names = targets();
        expect("in");
        const items = tuple(or);
        let ends: [number, number] = [0, 0];
        const parse = (): [Expression | null, Block, string] => {
          const from = texts.length;
          const test = skip("if") ? expression() : null;
          ends = [from, texts.length];
          expect("%}");
          return [test, ...block("else", "endfor")];
        };
        const [test, round, end] = scoped([...names[0], "loop"], parse, true);
        const other = end === "else" ? scoped([], () => body("endfor"), isInLoop) : expect("%}");
        moveTexts(...ends);
        const units = TOKEN * (at - start);
        const inner = (scope: Scope, each: Value): Scope => {
          const found = Object.create(scope) as Scope;
          assign(found, names, each);
          return found;
        };
        return (scope, out) => {
          const isIn = (each: Value): boolean => {
            const { isRunning } = condition;
            condition.isRunning = true;
            try {
              return isTrue(test!(inner(scope, each)));
            } finally {
              condition.isRunning = isRunning;
            }
          };
          const given = itemsOf(items(scope));
          charge(units * (1 + given.length));
          const all = test ? given.filter(isIn) : given;
          let isEmpty = true;
          for (const [index, each] of all.entries()) {
            const found = inner(scope, each);
            found["loop"] = new Loop(all, index);
            const signal = round(found, out);
            if (signal === BREAK) break;
            // jinja2 writes the block behind else after rounds that all ended early, too.
            if (!signal) isEmpty = false;
          }
          return isEmpty && other ? other(Object.create(scope) as Scope, out) : undefined;
        };
      },
      set: () => {
        const isField = tokens[at + 1]?.text === ".";
        const names = isField ? null : targets();
        const [of, field] = isField ? [expressionOf(newName()), (expect("."), word())] : [];
        if (field?.startsWith("_")) reject(`.${field}`);
        let value: Expression;
        if (skip("=")) {
          value = tuple();
          expect("%}");
        } else {
          const text = scoped([], () => body("endset"));
          value = (scope) => textOf(text, Object.create(scope) as Scope);
        }
        names?.[0].forEach(store);
        return (scope) => {
          if (names) return assign(scope, names, value(scope));
          const [found, made]: [Value, Value] = [of!(scope), value(scope)];
          if (!(found instanceof Namespace)) raise("a field of no namespace is set");
          found.of.set(field!, made);
        };
      },
      macro: () => {
        const name = newName();
        store(name);
        const start = at;
        const parameters: [string, Expression | null][] = [];
        const text = scoped([], () => {
          for (expect("("); !skip(")");) {
            if (parameters.length) expect(",");
            const parameter = newName();
            frame.own.add(parameter);
            if (parameters.some(([each]) => each === parameter)) raise(`two parameters ${parameter}`);
            const fallback = skip("=") ? expression() : null;
            if (!fallback && parameters.at(-1)?.[1]) raise("a parameter without a default behind one with a default");
            parameters.push([parameter, fallback]);
          }
          return body("endmacro");
        });
        const units = TOKEN * (at - start);
        return (scope) => {
          scope[name] = (args: Value[], named: Record<string, Value>) => {
            const inner = Object.create(scope) as Scope;
            const free = parameters.slice(args.length).map(([each]) => each);
            if (args.length > parameters.length || !Object.keys(named).every((each) => free.includes(each))) {
              raise(`the macro ${name} with these arguments`);
            }
            charge(units);
            parameters.forEach(([each], index) => {
              inner[each] = index < args.length ? args[index] : named[each];
            });
            for (const [each, fallback] of parameters.slice(args.length)) {
              if (!Object.hasOwn(named, each)) inner[each] = fallback?.(inner);
            }
            return textOf(text, inner);
          };
        };
      },
      with: () => {
        const pairs: [string, Expression][] = [];
        while (!is("%}")) {
          if (pairs.length) expect(",");
          pairs.push([newName(), (expect("="), expression())]);
        }
        const names = pairs.map(([name]) => name);
        const inner = scoped(names, () => body("endwith"), isInLoop);
        return (scope, out) => {
          const found = Object.create(scope) as Scope;
          for (const [name, value] of pairs) found[name] = value(scope);
          return inner(found, out);
        };
      },
      generation: () => {
        const inner = scoped([], () => body("endgeneration"), isInLoop);
        return (scope, out) => inner(Object.create(scope) as Scope, out);
      },
      break: () => ending(BREAK),
      continue: () => ending(CONTINUE),
    } satisfies Record<string, () => Block>),
  );
  const ending = (signal: number): Block => {
    if (!isInLoop) raise("break or continue outside a loop");
    expect("%}");
    return () => signal;
  };

  const tuple = (item: () => Expression = expression): Expression => {
    const items = [item()];
    if (!is(",")) return items[0]!;
    while (skip(",") && !is(")", "}}", "%}")) items.push(item());
    return (scope) => Tuple.from(items, (each) => each(scope));
  };
  const expression = (): Expression => {
    const start = texts.length;
    let value = or();
    while (skip("if")) {
      const [end, yes, test] = [texts.length, value, or()];
      moveTexts(start, end);
      const no = skip("else") ? expression() : undefined;
      value = (scope) => (isTrue(test(scope)) ? yes(scope) : no?.(scope));
    }
    return value;
  };
  const choice =
    (word: string, next: () => Expression): (() => Expression) =>
    () => {
      let left = next();
      while (skip(word)) {
        const [one, other] = [left, next()];
        left = (scope) => {
          const found: Value = one(scope);
          return isTrue(found) === (word === "or") ? found : other(scope);
        };
      }
      return left;
    };
  const not = (): Expression => {
    if (!skip("not")) return comparison();
    const value = not();
    return (scope) => !isTrue(value(scope));
  };
  const or = choice("or", choice("and", not));
  const comparison = (): Expression => {
    const first = sum();
    const others: [string, Expression][] = [];
    for (;;) {
      const isNot = is("not") && tokens[at + 1]!.text === "in" && Boolean((at += 1));
      if (!is("==", "!=", "<", ">", "<=", ">=", "in")) break;
      others.push([(isNot ? "not " : "") + tokens[at++]!.text, sum()]);
    }
    if (!others.length) return first;
    return (scope) => {
      let left: Value = first(scope);
      return others.every(([operator, right]) => {
        const [one, other] = [left, right(scope)] as [Value, Value];
        left = other;
        weigh([one, other]);
        return COMPARISONS[operator]!(one, other);
      });
    };
  };
  const level =
    (operators: readonly string[], next: () => Expression): (() => Expression) =>
    () => {
      let left = next();
      while (is(...operators)) {
        const [one, operator, other] = [left, tokens[at++]!.text, next()];
        left = (scope) => computed(operator, one(scope), other(scope));
      }
      return left;
    };
  const unary = (hasFilters = true): Expression => {
    let value;
    if (skip("-")) {
      const of = unary(false);
      value = fields((scope) => negated(of(scope)));
    } else {
      value = fields(primary());
    }
    if (is("**")) reject("**");
    return hasFilters ? filters(value) : value;
  };
  const product = level(["*", "/", "//", "%"], unary);
  const sum = level(["+", "-"], level(["~"], product));

  const primary = (): Expression => {
    const { kind, text } = tokens[at]!;
    if (kind === "number" || kind === "string") {
      at += 1;
      let value: Value = kind === "number" ? numberFrom(text) : text;
      while (kind === "string" && tokens[at]!.kind === kind) value += tokens[at++]!.text;
      if (kind === "string") {
        texts.push(value as string);
        value = new Text(value as string);
      }
      return () => value;
    }
    if (skip("(")) {
      if (skip(")")) return () => new Tuple();
      const value = tuple();
      expect(")");
      return value;
    }
    if (skip("[")) {
      const items = listed("]", expression);
      return (scope) => items.map((each) => each(scope));
    }
    if (skip("{")) {
      const pairs = listed("}", () => [expression(), (expect(":"), expression())] as const);
      return (scope) => mapFrom(pairs.map(([key, value]) => [key(scope), value(scope)]));
    }
    const name = word();
    if (CONSTANTS.has(name)) return () => CONSTANTS.get(name);
    return expressionOf(name !== "loop" && RESERVED.test(name) ? reject(`the variable ${name}`) : name);
  };
  const listed = <Item>(end: string, item: () => Item): Item[] => {
    const found: Item[] = [];
    while (!skip(end)) {
      if (found.length) expect(",");
      if (!is(end)) found.push(item());
    }
    return found;
  };
  /** Return the value or the call of a variable. */
  const expressionOf = (name: string): Expression => {
    frame.own.add(name);
    if (!skip("(")) return (scope) => scope[name];
    calls.add(name);
    const { values } = listOfArguments();
    return (scope) => {
      const found: Value = scope[name];
      const [args, named] = values(scope);
      charge(20 * TOKEN);
      if (typeof found !== "function") raise(`${name} is no function`);
      if (found.length < 2 && Object.keys(named).length) reject(`a named argument of ${name}`);
      return (found as Callable)(args, named);
    };
  };
  /** Parse arguments behind "(". */
  const listOfArguments = (): Arguments => {
    const named: [string, Expression][] = [];
    const items: Expression[] = [];
    listed(")", () => {
      if (tokens[at + 1]!.text === "=" && !tokens[at + 1]!.kind) {
        const name = newName();
        if (name.startsWith("_") || named.some(([each]) => each === name)) reject(`the argument ${name}`);
        at += 1;
        named.push([name, expression()]);
      } else {
        items.push(named.length || is("*", "**") ? reject("such an argument") : expression());
      }
    });
    return {
      count: items.length,
      names: named.map(([name]) => name),
      values: (scope) => [
        items.map((each) => each(scope)),
        Object.fromEntries(named.map(([name, each]) => [name, each(scope)])),
      ],
    };
  };
  const fields = (start: Expression): Expression => {
    let value = start;
    for (;;) {
      const of = value;
      if (skip(".")) {
        const isOfLoop = tokens[at - 2]!.text === "loop" && tokens[at - 3]!.text !== ".";
        const name = word();
        if (skip("(")) {
          const { count, names, values } = listOfArguments();
          operation(METHODS, name, count, names);
          value = (scope) => called(of(scope), name, values(scope)[0]);
        } else {
          if (isOfLoop) checkedOfLoop(name);
          checkAttribute(name);
          value = (scope) => attributeOf(of(scope), name);
        }
      } else if (skip("[")) {
        value = subscript(of);
      } else {
        if (is("(")) reject("a call of a value");
        return value;
      }
    }
  };
  const subscript = (of: Expression): Expression => {
    const bound = (): Expression => (is(":", "]") ? () => null : expression());
    const parts = [bound()];
    if (!is(":")) {
      expect("]");
      return (scope) => itemOf(of(scope), parts[0]!(scope));
    }
    while (parts.length < 3 && skip(":")) parts.push(bound());
    expect("]");
    return (scope) =>
      sliceOf(
        of(scope),
        parts.map((each) => each(scope)),
      );
  };
  const filters = (start: Expression): Expression => {
    let value = start;
    for (;;) {
      const of = value;
      if (is("(")) reject("a call of a value");
      if (skip("|")) {
        const name = word();
        const { count, names, values } = skip("(") ? listOfArguments() : NOTHING;
        operation(FILTERS, name, count, names);
        value = (scope) => applied(FILTERS, name, of(scope), ...values(scope));
      } else if (skip("is")) {
        const isNot = skip("not");
        const name = word();
        let { count, names, values } = NOTHING;
        if (skip("(")) ({ count, names, values } = listOfArguments());
        else if (
          (tokens[at]!.kind && tokens[at]!.kind !== "data") ||
          (/^[\w([{]/.test(tokens[at]!.text) && !is("else", "or", "and"))
        ) {
          const argument = fields(primary());
          count = 1;
          values = (scope) => [[argument(scope)], {}];
        }
        operation(TESTS, name, count, names);
        value = (scope) => isTrue(applied(TESTS, name, of(scope), ...values(scope))) !== isNot;
      } else {
        return value;
      }
    }
  };

  const [program] = block("");
  for (const name of calls) if (!functions.has(name)) reject(`the function ${name}`);
  return { program, size: tokens.length, texts };
}

const NOTHING: Arguments = { count: 0, names: [], values: () => [[], {}] };

const COMPARISONS: Readonly<Record<string, (one: Value, other: Value) => boolean>> = {
  "==": isEqual,
  "!=": (one, other) => !isEqual(one, other),
  "<": isLess,
  ">": (one, other) => isLess(other, one),
  "<=": (one, other) => isLess(one, other) || isEqual(one, other),
  ">=": (one, other) => isLess(other, one) || isEqual(one, other),
  in: isIn,
  "not in": (one, other) => !isIn(one, other),
};

function textOf(block: Block, scope: Scope): Text {
  const out: Output = [];
  block(scope, out);
  return joined(out);
}
