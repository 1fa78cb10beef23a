// One decode with all its steps as plain values, in Node or in a page.
import { Decoding } from "../dist/decoding/decoding.js";
import { paramsFromOptions } from "../dist/generation_config/resolve.js";
import { contextFromManifest } from "../dist/state/context.js";

// Return the steps of a request in a session, and its ids. The options are those of the request alone, without the
// bundle's defaults.
export async function decodeWithSteps(session, manifest, { prompt, options, eos }) {
  const plain = {
    ...manifest,
    decoding: { add_bos: false },
    defaults: {},
    special_tokens: { ...manifest.special_tokens, eos },
  };
  const params = paramsFromOptions(options, plain, "cpu");
  const request = session.request();
  const decoding = new Decoding(request, prompt, contextFromManifest(params, plain));
  const steps = [];
  while (decoding.stopReason === null) {
    steps.push({ ...plainStep(await decoding.step()), generated: decoding.generated() });
  }
  await request.release();
  return { steps, generated: decoding.generated(), committed: decoding.committed(), stop: decoding.stopReason };
}

function plainStep(step) {
  return {
    number: step.number,
    branches: step.branches.map(({ tokens, ended, blocks }) => ({ tokens, ended, blocks })),
    prefix: step.windows.prefix,
    commit: step.windows.commit,
    lengths: step.windows.lengths,
    sampled: step.windows.sampled,
    confidences: step.confidences,
    winner: step.winner,
    unmasked: step.unmasked,
    lookaheads: step.lookaheads,
  };
}
