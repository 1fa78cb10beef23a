/** Decode bundles of lopa-export in Node and in a browser tab. */

export * from "./browser.js";
export { Decoder } from "./node_decoder.js";
