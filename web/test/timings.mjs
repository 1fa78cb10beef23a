// Seconds of forwards and of answers, in Node or in a page.
const PROMPT = "Tom has 3 apples. He buys 4 more.";

function windowsOf(branches, width, prefix) {
  const rows = branches * width;
  return {
    branches,
    width,
    queries: width,
    inputIds: Int32Array.from({ length: rows }, (_, row) => 4 + ((row * 31) % 900)),
    positions: Int32Array.from({ length: rows }, (_, row) => prefix + (row % width)),
    mask: new Uint8Array(rows * width).fill(1),
    logitsIndex: Int32Array.from({ length: rows }, (_, row) => row % width),
  };
}

export async function secondsOf(task) {
  const began = performance.now();
  await task();
  return (performance.now() - began) / 1000;
}

// Return the seconds of `turns` forwards of each of `shapes`, [branches, window, prefix].
export async function secondsOfForwards(session, shapes, turns) {
  const forwards = [];
  for (const [branches, width, prefix] of shapes) {
    const request = session.request();
    await request.forward(windowsOf(1, prefix, 0), 1);
    await request.commit(0, prefix);
    const windows = windowsOf(branches, width, prefix);
    await request.forward(windows, 1);
    const seconds = [];
    for (let turn = 0; turn < turns; turn++) seconds.push(await secondsOf(() => request.forward(windows, 1)));
    await request.release();
    forwards.push(seconds);
  }
  return forwards;
}

// Return the seconds of `turns` equal answers, and their number of tokens.
export async function secondsOfAnswers(decoder, tokens, turns) {
  const answers = [];
  let result;
  for (let turn = 0; turn <= turns; turn++) {
    result = await decoder.generate(PROMPT, { max_new_tokens: tokens, stop_at_eos: false });
    if (turn > 0) answers.push(result.seconds);
  }
  return { answers, tokens: result.tokens };
}
