// Events, stop strings, cancelling, errors and digests, on the bundle in the folder BUNDLE.
import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import * as wasm from "onnxruntime-web";

import {
  BadInputError,
  CheckFailedError,
  Decoder,
  DownloadFailedError,
  LopaError,
  MissingBackendError,
  PromptTooLongError,
  SCHEMA_VERSION,
} from "../dist/index.js";
import { Decoder as BrowserDecoder } from "../dist/browser.js";
import { textStream } from "../dist/text/text_stream.js";

const { BUNDLE, EXPECTED } = process.env;
const PROMPT = "Tom has 3 apples. He buys 4 more.";
// An answer that no end of text cuts short.
const LONG = { max_new_tokens: 64, stop_at_eos: false };
let decoder, scratch;

before(async () => {
  decoder = await Decoder.open(BUNDLE, { threads: 1 });
  scratch = await mkdtemp(join(tmpdir(), "lopa-web-"));
});
after(async () => {
  await decoder.close();
  await rm(scratch, { recursive: true });
});

async function eventsOf(prompt, options) {
  const events = [];
  for await (const event of decoder.stream(prompt, options)) events.push(event);
  return events;
}

// Return a copy of the bundle in which a function has changed the manifest.
async function changedBundle(name, change) {
  const folder = join(scratch, name);
  await cp(BUNDLE, folder, { recursive: true });
  const path = join(folder, "manifest.json");
  const manifest = JSON.parse(await readFile(path, "utf8"));
  change(manifest);
  await writeFile(path, JSON.stringify(manifest));
  return folder;
}

// Check that a promise fails with an error of this class that names what was received, expected and what to do.
async function assertFails(promise, kind, received, remedy = /./) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof kind && error instanceof LopaError, String(error));
    assert.match(error.received, received);
    assert.match(error.remedy, remedy);
    assert.ok(error.expected.length > 0 && error.message.includes(error.remedy));
    return true;
  });
}

test("answers equal those of Python", async () => {
  for (const { prompt, options, ...expected } of JSON.parse(await readFile(EXPECTED, "utf8"))) {
    const result = await decoder.generate(prompt, options);
    const found = Object.fromEntries(Object.keys(expected).map((name) => [name, result[name]]));
    assert.deepEqual(found, expected, JSON.stringify(options));
  }
});

test("text events join to the answer, and the result comes last", async () => {
  const events = await eventsOf(PROMPT, LONG);
  const texts = events.filter((event) => event.type === "text").map((event) => event.text);
  assert.deepEqual(
    events.map((event) => event.type),
    [...texts.map(() => "text"), "done"],
  );
  const { result } = events.at(-1);
  assert.ok(texts.length > 1);
  assert.equal(texts.join(""), result.text);
  assert.equal(decoder.tokenizer.decode(result.token_ids), result.text);
  assert.equal(result.tokens_per_forward, result.tokens / result.steps);
});

test("drafts show masked positions, and steps are reported", async () => {
  const numbers = [];
  const events = await eventsOf(PROMPT, { ...LONG, drafts: true, on_step: (step) => numbers.push(step.number) });
  const drafts = events.filter((event) => event.type === "draft");
  const { result } = events.at(-1);
  assert.deepEqual(
    drafts.map((draft) => draft.step),
    numbers,
  );
  assert.equal(numbers.length, result.steps);
  assert.ok(drafts[0].text.includes("░"));
  const masked = [...drafts[0].text].filter((character) => character === "░").length;
  assert.equal((masked + drafts[0].unmasked) % 32, 0);
  assert.equal(drafts.at(-1).unmasked, 64);
  assert.ok(!drafts.at(-1).text.includes("░"));
});

test("pieces of text end with whole characters", () => {
  const text = "Übung: 🍎🍎 und 中文.";
  const ids = decoder.tokenizer.encode(text, false, false);
  const stream = textStream(decoder.tokenizer, []);
  const pieces = [...ids.map((id) => stream.push([id])), stream.finish()];
  assert.equal(pieces.join(""), text);
  assert.ok(pieces.every((piece) => !piece.includes("\ufffd")));
  assert.ok(ids.length > text.length);
});

test("a stop string ends the answer before it", async () => {
  const { text } = await decoder.generate(PROMPT, LONG);
  const stop = text.slice(6, 10);
  const result = await decoder.generate(PROMPT, { ...LONG, stop: [stop, "never written"] });
  assert.equal(result.text, text.slice(0, text.indexOf(stop)));
  assert.equal(result.stop_reason, "stop_string");
  assert.equal(result.stop_string, stop);
  assert.ok(result.tokens < 64);
});

test("a signal cancels after the current step", async () => {
  const controller = new AbortController();
  const options = { ...LONG, signal: controller.signal, on_step: (step) => step.number === 2 && controller.abort() };
  const events = await eventsOf(PROMPT, options);
  const { result } = events.at(-1);
  assert.equal(result.stop_reason, "cancelled");
  assert.equal(result.steps, 2);
  assert.ok(result.tokens < 64);
});

// Check that what waits gets its turn between steps.
async function checkTurns(opened) {
  const { port1, port2 } = new MessageChannel();
  for (const send of [setTimeout, setImmediate, (task) => (port2.once("message", task), port1.postMessage(null))]) {
    const controller = new AbortController();
    let stepsAfter = 0;
    const on_step = ({ number }) => {
      if (number === 2) send(() => controller.abort());
      if (controller.signal.aborted) stepsAfter++;
    };
    const options = { max_new_tokens: 256, stop_at_eos: false, strategy: "vanilla", block_steps: 32 };
    const result = await opened.generate(PROMPT, { ...options, signal: controller.signal, on_step });
    assert.equal(result.stop_reason, "cancelled");
    assert.ok(result.steps < 256 && stepsAfter <= 1, `${result.steps} steps, ${stepsAfter} after the signal`);
  }
  port1.close();
  const late = await opened.generate(PROMPT, { ...LONG, signal: AbortSignal.abort() });
  assert.deepEqual([late.stop_reason, late.steps], ["cancelled", 0]);
}

test("timers and messages run between steps, and cancel", () => checkTurns(decoder));

test("timers and messages run between steps on WebAssembly, and cancel", async () => {
  const opened = await Decoder.open(BUNDLE, { device: "wasm", ort: wasm, threads: 1 });
  await checkTurns(opened);
  await opened.close();
});

test("the next step waits for on_step, and its errors end the request", async () => {
  let isRunning = false;
  const on_step = async () => {
    assert.ok(!isRunning);
    isRunning = true;
    await new Promise((resolve) => setTimeout(resolve, 2));
    isRunning = false;
  };
  assert.equal((await decoder.generate(PROMPT, { ...LONG, on_step, signal: null })).tokens, 64);
  const mine = new RangeError("mine");
  const fail = () => Promise.reject(mine);
  await assert.rejects(decoder.generate(PROMPT, { on_step: fail }), (error) => error === mine);
  await assertFails(decoder.generate(PROMPT, { on_step: 3 }), BadInputError, /on_step = 3/);
  await assertFails(decoder.generate(PROMPT, { signal: new AbortController() }), BadInputError, /signal = \[object AbortController\]/);
});

test("a time limit returns the committed text", async () => {
  const result = await decoder.generate(PROMPT, { ...LONG, time_limit: 1e-6 });
  assert.equal(result.stop_reason, "time_limit");
  assert.equal(result.steps, 1);
});

test("requests at the same time get the answers that they get alone", async () => {
  const seeds = [1, 2, 3];
  const options = (seed) => ({ ...LONG, temperature: 1, seed, branches: 2 });
  const alone = [];
  for (const seed of seeds) alone.push(await decoder.generate(PROMPT, options(seed)));
  const together = await Promise.all(seeds.map((seed) => decoder.generate(PROMPT, options(seed))));
  assert.deepEqual(
    together.map((result) => result.token_ids),
    alone.map((result) => result.token_ids),
  );
  assert.notDeepEqual(alone[0].token_ids, alone[1].token_ids);
});

test("a special token in a prompt stays text, unless it is allowed", async () => {
  const text = "a<|mask|>b";
  const { mask } = decoder.bundle.manifest.special_tokens;
  const plain = decoder.tokenizer.encode(text, false, false);
  assert.ok(!plain.includes(mask));
  assert.equal(decoder.tokenizer.decode(plain), text);
  assert.ok(decoder.tokenizer.encode(text, false, true).includes(mask));
});

test("invalid prompts and options are rejected by name", async () => {
  const generate = (prompt, options) => decoder.generate(prompt, options);
  await assertFails(generate("", {}), BadInputError, /empty prompt/);
  await assertFails(generate([1, 4096], {}), BadInputError, /4096/);
  await assertFails(generate([1, -1], {}), BadInputError, /-1/);
  await assertFails(generate([1, , 2], {}), BadInputError, /1,null,2/);
  await assertFails(generate(12, { max_new_tokens: 2048 }), PromptTooLongError, /2048/);
  await assertFails(generate("\ud800", {}), BadInputError, /Unicode/);
  await assertFails(generate("a".repeat(10 ** 6), {}), PromptTooLongError, /1000000 characters/);
  await assertFails(generate("a", { bloc_size: 8 }), BadInputError, /unknown "bloc_size"/, /did you mean block_size/);
  for (const [name, meant] of [["maxTokens", "max_new_tokens"], ["topP", "top_p"], ["onStep", "on_step"], ["stopAtEos", "stop_at_eos"]]) {
    await assertFails(generate("a", { [name]: 1 }), BadInputError, new RegExp(`unknown "${name}"`), new RegExp(`did you mean ${meant}\\?`));
  }
  await assertFails(generate("a", { n: 2 }), BadInputError, /unknown "n"/, /correct or remove/);
  await assertFails(generate("a", { tools: [] }), BadInputError, /tools, which lopa-web lacks/, /Python/);
  await assertFails(generate("a", null), BadInputError, /options = null/);
  await assertFails(generate("a", { drafts: "no" }), BadInputError, /drafts = "no"/);
  await assertFails(generate("a", { temperature: NaN }), BadInputError, /temperature = NaN/);
  await assertFails(generate([1, NaN], {}), BadInputError, /\[1,"NaN"\]/);
  await assertFails(generate(Promise.resolve([1]), {}), BadInputError, /\[object Promise\]/);
  await assertFails(generate([{ role: "user", content: "a" }], {}), BadInputError, /messages/, /promptFromMessages/);
  await assertFails(generate("a", { json_schema: "{}" }), BadInputError, /json_schema/, /Python/);
  await assertFails(generate("a", { strategy: "wino" }), BadInputError, /wino/, /Python/);
  await assertFails(generate("a", { skip_threshold: 2 }), BadInputError, /skip_threshold = 2/);
  await assertFails(generate("a", { block_size: 1.5 }), BadInputError, /block_size = 1.5/);
  await assertFails(generate("a", { stop: "text" }), BadInputError, /stop/);
  await assertFails(generate("a", { stop: [, "text"] }), BadInputError, /stop/);
  await assertFails(generate("a", { stop: ["\ud83c"] }), BadInputError, /stop/);
  await assertFails(generate("a", { stop: ["🍎".repeat(1025)] }), BadInputError, /stop/);
  assert.equal(decoder.params({ stop: ["🍎".repeat(1024)] }).stop.length, 1);
  await assertFails(generate("a", { seed: -2 }), BadInputError, /seed -2/, /-1/);
  await assertFails(generate("a", { strategy: "d2f", branches: 2 }), BadInputError, /branches 2/);
  await assertFails(generate("a", { strategy: "d2f", cache: "dual" }), BadInputError, /"dual"/);
  await assertFails(generate("a", { temperature: 1, top_k: 9 }), BadInputError, /top_k 9/, /with-logits/);
});

test("a seed of -1 or random is the default, as in Python", async () => {
  for (const seed of [-1, -1n, "random"]) {
    assert.equal(decoder.params({ seed }).seed, 0);
    const drawn = [1, 2, 3].map(() => decoder.params({ seed, temperature: 1 }).seed);
    assert.equal(new Set(drawn).size, 3);
  }
});

test("a result is JSON, with its seed", async () => {
  for (const seed of [7, 7n, 2 ** 53 - 1, undefined]) {
    const result = await decoder.generate("a", { seed, max_new_tokens: 1 });
    const { seed: found, params } = JSON.parse(JSON.stringify(result));
    assert.deepEqual([found, params.seed], [Number(seed ?? 0), Number(seed ?? 0)]);
  }
  assert.deepEqual([2n ** 53n, 2n ** 63n - 1n].map((seed) => decoder.params({ seed }).seed), [2n ** 53n, 2n ** 63n - 1n]);
});

test("a bundle's defaults apply, except those that contradict the request", async () => {
  const folder = await changedBundle("defaults", (manifest) => {
    manifest.defaults = { strategy: "eb", gamma: 0.5, max_new_tokens: 32, seed: 5 };
  });
  const opened = await Decoder.open(folder, { threads: 1 });
  assert.equal(opened.params().strategy, "eb");
  assert.equal(opened.params().gamma, 0.5);
  const params = opened.params({ strategy: "d2f" });
  assert.equal(params.strategy, "d2f");
  assert.equal(params.max_new_tokens, 32);
  assert.deepEqual([-1, "random", 7].map((seed) => opened.params({ seed, temperature: 1 }).seed), [5, 5, 7]);
  await opened.close();
});

test("a closed decoder says so", async () => {
  const opened = await Decoder.open(BUNDLE, { threads: 1 });
  const events = opened.stream(PROMPT, { max_new_tokens: 32, stop_at_eos: false, drafts: true });
  await events.next();
  let isClosed = false;
  const closing = opened.close().then(() => (isClosed = true));
  await opened.close();
  assert.ok(isClosed);
  await closing;
  const drain = async () => {
    for await (const event of events) assert.notEqual(event.type, "done");
  };
  await assertFails(drain(), BadInputError, /the decoder is closed/, /open the bundle again/);
  await assertFails(opened.generate(PROMPT), BadInputError, /the decoder is closed/);
});

test("a broken bundle is rejected with a remedy", async () => {
  const open = (folder, options) => Decoder.open(folder, options);
  await assertFails(open(join(scratch, "nothing")), BadInputError, /manifest.json is missing/, /copy the bundle/);
  const future = await changedBundle("future", (manifest) => (manifest.schema = SCHEMA_VERSION + 1));
  await assertFails(open(future), BadInputError, /schema version 4/, /update lopa-web/);
  const unknown = await changedBundle("unknown", (manifest) => (manifest.extra = 1));
  await assertFails(open(unknown), BadInputError, /unknown field \$\.extra/);
  const large = await changedBundle("large", (manifest) => (manifest.dimensions.head_size = 2 ** 40));
  await assertFails(open(large), BadInputError, /head_size/);
  const fused = await changedBundle("fused", (manifest) => (manifest.twins.at(-1).fused[0].more = 1));
  await assertFails(open(fused), BadInputError, /unknown field \$\.twins\[1\]\.fused\[0\]\.more/);
  const outside = await changedBundle("outside", (manifest) => (manifest.files.at(-2).path = "../tokenizer.json"));
  await assertFails(open(outside), BadInputError, /"\.\.\/tokenizer.json"/, /do not use this bundle/);
  const surrogate = await changedBundle("surrogate", (manifest) => (manifest.files.at(-2).path = "\ud83c.json"));
  await assertFails(open(surrogate), BadInputError, /names the file "\\ud83c.json"/, /do not use this bundle/);
  const absent = await changedBundle("absent", () => {});
  await rm(join(absent, "tokenizer.json"));
  await assertFails(open(absent), BadInputError, /tokenizer.json is missing/, /copy the bundle/);
  const sliding = await changedBundle("sliding", (manifest) => (manifest.decoding.alignment = "sliding"));
  const opened = await open(sliding, { threads: 1 });
  assert.throws(() => opened.params(), /"sliding"[^]*decode this bundle with Python/);
  await opened.close();
  const wide = await changedBundle("wide", (manifest) => (manifest.dtype = "bfloat16"));
  await assertFails(open(wide), BadInputError, /bfloat16/, /--dtype/);
});

test("a file with another digest is rejected", async () => {
  const folder = await changedBundle("altered", () => {});
  for (const name of ["tokenizer.json", "model.onnx.data"]) {
    const path = join(folder, name);
    const content = await readFile(path);
    const place = content.length - 1;
    const changed = Buffer.from(content);
    changed[place] ^= 32;
    await writeFile(path, changed);
    await assertFails(Decoder.open(folder), CheckFailedError, new RegExp(`${name} has the SHA-256`), /copy the bundle/);
    await writeFile(path, content.subarray(0, place));
    await assertFails(Decoder.open(folder), BadInputError, new RegExp(`${name} has ${place} bytes`));
    await writeFile(path, content);
  }
});

test("a bundle is fetched from an address, and checked", async () => {
  let [larger, failing, broken, cut, query] = ["", "", "", "", ""];
  const page = "<!DOCTYPE html>\n<title>Home</title>";
  const server = createServer(async (request, response) => {
    if (failing && request.url.endsWith(failing)) return response.writeHead(500).end();
    if (!request.url.endsWith(query)) return response.writeHead(403).end();
    const path = request.url.slice(0, request.url.length - query.length);
    if (path.startsWith("/page/")) return response.writeHead(200, { "content-type": "Text/HTML; charset=utf-8" }).end(page);
    if (path.startsWith("/text/")) return response.end(page);
    try {
      const content = await readFile(join(BUNDLE, path));
      if (cut && path.endsWith(cut)) return response.end(content.subarray(1));
      if (cut) await new Promise((resolve) => setTimeout(resolve, 50));
      if (broken && request.url.endsWith(broken)) {
        response.writeHead(200, { "content-length": content.length }).write(content.subarray(0, 1000));
        return setTimeout(() => response.destroy(), 20);
      }
      response.end(request.url.endsWith(larger) && larger ? Buffer.concat([content, Buffer.of(0)]) : content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  const address = `http://127.0.0.1:${server.address().port}`;
  wasm.env.wasm.numThreads = 1;
  const progress = [];
  const on_progress = async (each) => progress.push(each);
  const opened = await Decoder.open(address, { device: "wasm", ort: wasm, on_progress });
  const names = ["tokenizer.json", "tokenizer_config.json", "model.cpu.onnx", "model.onnx.data"];
  const total = (await Promise.all(names.map((name) => stat(join(BUNDLE, name))))).reduce((sum, { size }) => sum + size, 0);
  assert.deepEqual(progress.at(-1), { loaded: total, total });
  assert.ok(progress.every(({ loaded }, index) => index === 0 || loaded > progress[index - 1].loaded));
  const options = { max_new_tokens: 32, stop_at_eos: false };
  const [fetched, local] = [await opened.generate(PROMPT, options), await decoder.generate(PROMPT, options)];
  assert.deepEqual(fetched.token_ids, local.token_ids);
  await opened.close();

  await assertFails(Decoder.open(BUNDLE, { device: "webgpu" }), MissingBackendError, /no WebGPU in Node/, /"cpu"/);

  // the file for bundlers
  await assertFails(BrowserDecoder.open(BUNDLE), BadInputError, /location/, /check the location/);
  await assertFails(BrowserDecoder.open(address), MissingBackendError, /without the option ort/, /pass it as ort/);
  const bundled = await BrowserDecoder.open(address, { device: "wasm", ort: wasm });
  assert.deepEqual((await bundled.generate(PROMPT, options)).token_ids, local.token_ids);
  assert.ok(bundled instanceof BrowserDecoder && !(bundled instanceof Decoder) && opened instanceof Decoder);
  await bundled.close();

  larger = "tokenizer.json";
  await assertFails(Decoder.open(address), BadInputError, /tokenizer.json has more than \d+ bytes/);
  larger = "";
  for (const name of ["manifest.json", "tokenizer.json", "model.onnx.data"]) {
    const open = () => Decoder.open(address, { device: "wasm", ort: wasm });
    [failing, broken] = [name, ""];
    await assertFails(open(), DownloadFailedError, new RegExp(`${name} is not sent \\(HTTP status 500\\)`), /try again/);
    [failing, broken] = ["", name];
    await assertFails(open(), DownloadFailedError, new RegExp(`${name} cannot be fetched: `), /try again/);
  }
  [failing, broken] = ["", ""];

  // a body that ends early, while another file arrives later
  for (const name of ["tokenizer_config.json", "tokenizer.json", "model.onnx.data"]) {
    cut = name;
    const { size } = await stat(join(BUNDLE, name));
    let [isOver, callsAfter] = [false, 0];
    const on_progress = () => (callsAfter += isOver);
    const opening = Decoder.open(address, { device: "wasm", ort: wasm, on_progress });
    await assertFails(opening, DownloadFailedError, new RegExp(`${name} .* ${size - 1} of ${size} bytes`), /^try again/);
    isOver = true;
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.equal(callsAfter, 0);
  }
  cut = "";

  // a page in place of a bundle, and a signed address, whose signature no error shows
  await assertFails(Decoder.open(`${address}/page`), BadInputError, /page has no complete bundle: manifest.json .* HTML page/, /address/);
  await assertFails(Decoder.open(`${address}/text`), BadInputError, /manifest.json is not JSON, but "<!DOCTYPE html>/, /location/);
  query = "?key=a%2Fb&signature=secret";
  for (const base of [address, `${address}/`]) {
    const signed = await Decoder.open(`${base}${query}#part`, { device: "wasm", ort: wasm });
    assert.deepEqual((await signed.generate(PROMPT, options)).token_ids, local.token_ids);
    await signed.close();
  }
  for (const path of ["/page", "/text", "/nothing", "/failing"]) {
    if (path === "/failing") failing = query;
    await assert.rejects(Decoder.open(`${address}${path}${query}`), ({ message }) => /^http/.test(message) && !/secret/.test(message));
  }
  [query, failing] = ["", ""];

  const signal = AbortSignal.timeout(10);
  await assert.rejects(Decoder.open(address, { device: "wasm", ort: wasm, signal }), { name: "TimeoutError" });
  const mine = new RangeError("mine");
  for (const fail of [() => Promise.reject(mine), () => assert.fail(mine)]) {
    await assert.rejects(Decoder.open(address, { on_progress: fail }), (error) => error === mine);
  }
  await assert.rejects(Decoder.open(BUNDLE, { signal: AbortSignal.abort("bye") }), (error) => error === "bye");
  const controller = new AbortController();
  const lateOrt = { ...wasm, InferenceSession: { create: async (...given) => (controller.abort(), wasm.InferenceSession.create(...given)) } };
  const late = Decoder.open(BUNDLE, { device: "wasm", ort: lateOrt, signal: controller.signal });
  await assert.rejects(late, { name: "AbortError" });
  await assertFails(Decoder.open(`${address}/nothing`), BadInputError, /manifest.json is missing \(HTTP status 404\)/);
  await assert.rejects(Decoder.open(address, { signal: AbortSignal.abort() }), { name: "AbortError" });
  server.close();
  await new Promise((resolve) => setTimeout(resolve, 10));
  await assertFails(Decoder.open(address), DownloadFailedError, /cannot be fetched/, /check the address and the server$/);
  globalThis.location = new URL("https://page.example");
  await assertFails(Decoder.open(address), DownloadFailedError, /cannot be fetched/, /allow pages of https:\/\/page.example \(CORS\)/);
  globalThis.location = new URL(address);
  await assertFails(Decoder.open(address), DownloadFailedError, /cannot be fetched/, /check the address and the server$/);
  delete globalThis.location;
});

test("a runtime that cannot start is named, not the bundle", async () => {
  const fail = () => Promise.reject(new Error("no available backend found. ERR: [wasm] TypeError: Failed to fetch"));
  const ort = { ...wasm, InferenceSession: { create: fail } };
  const opening = Decoder.open(BUNDLE, { device: "wasm", ort });
  await assertFails(opening, MissingBackendError, /Runtime cannot start: .*Failed to fetch/, /wasmPaths/);
});

test("invalid options of open are rejected", async () => {
  for (const threads of [-1, 0, 1.5, 1025, "2"]) {
    await assertFails(Decoder.open(BUNDLE, { threads }), BadInputError, /threads/);
  }
  await assertFails(Decoder.open(BUNDLE, { on_progress: 1 }), BadInputError, /on_progress = 1/);
  await assertFails(Decoder.open(BUNDLE, { signal: "x" }), BadInputError, /signal = "x"/);
  await assertFails(Decoder.open(BUNDLE, { device: "cuda" }), BadInputError, /device = "cuda"/);
  for (const unknown of ["thread", "onProgress", "constructor"]) {
    await assertFails(Decoder.open(BUNDLE, { [unknown]: undefined }), BadInputError, new RegExp(`unknown .*${unknown}`));
  }
  const chat = [{ role: "user", content: "Hello" }];
  await assertFails(decoder.promptFromMessages(chat, { tools: [] }), BadInputError, /tools = \[\]/);
  await assertFails(decoder.promptFromMessages(chat, null), BadInputError, /= null/);
  for (const location of [undefined, null, 3, ""]) {
    await assertFails(Decoder.open(location), BadInputError, new RegExp(`location ${JSON.stringify(location)}$`), /location/);
  }
  await assertFails(Decoder.open(BUNDLE, null), BadInputError, /open = null/);
  await assertFails(Decoder.open(BUNDLE, { ort: import("onnxruntime-node") }), BadInputError, /ort = \[object Promise\]/);
  await assertFails(Decoder.open(BUNDLE, { ort: {} }), BadInputError, /ort = {}/);
  const unset = { device: undefined, ort: null, threads: null, signal: undefined, on_progress: null };
  await (await Decoder.open(BUNDLE, unset)).close();
});
