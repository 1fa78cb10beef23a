/** True in Node, false in a browser. */
export const IS_NODE = typeof process !== "undefined" && Boolean(process.versions?.node);
