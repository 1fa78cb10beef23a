// Bundle page.js and worker.js of a folder into its folder dist, with one of three bundlers, and print the warnings and
// the number of bytes of each file as JSON.
//
//   node bundle.mjs BUNDLERS NAME FOLDER
//
// BUNDLERS has the bundlers in node_modules, and NAME is one of them.
import { copyFile, readdir, stat, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [bundlers, name, folder] = process.argv.slice(2);
const { resolve } = createRequire(join(bundlers, "package.json"));
const bundler = await import(pathToFileURL(resolve(name)));
const dist = join(folder, "dist");
const HTML = '<!doctype html><link rel="icon" href="data:,"><body><script type="module" src="./page.js"></script>';

const builds = {
  async esbuild() {
    const entryPoints = ["page.js", "worker.js"].map((each) => join(folder, each));
    const options = { bundle: true, minify: true, format: "esm", logLevel: "silent" };
    const { warnings } = await bundler.build({ ...options, entryPoints, outdir: dist });
    // esbuild leaves URLs in code as they are
    const wasm = "ort-wasm-simd-threaded.wasm";
    await copyFile(join(folder, "node_modules", "onnxruntime-web", "dist", wasm), join(dist, wasm));
    await writeFile(join(dist, "index.html"), HTML);
    return warnings.map((each) => `${each.location?.file}: ${each.text}`);
  },
  async webpack() {
    const output = { path: dist, filename: "page.js" };
    const options = { mode: "production", context: folder, entry: "./page.js", output, performance: false };
    const stats = await new Promise((done, fail) =>
      bundler.default(options, (error, found) => (error ? fail(error) : done(found))),
    );
    const { errors, warnings } = stats.toJson({ all: false, errors: true, warnings: true });
    if (errors.length > 0) throw new Error(JSON.stringify(errors, null, 1));
    await writeFile(join(dist, "index.html"), HTML);
    return warnings.map((each) => `${each.moduleName}: ${each.message}`);
  },
  async vite() {
    await writeFile(join(folder, "index.html"), HTML);
    const warnings = [];
    const customLogger = { ...bundler.createLogger("silent"), warn: (text) => warnings.push(text) };
    customLogger.warnOnce = customLogger.warn;
    await bundler.build({ root: folder, base: "./", configFile: false, customLogger, worker: { format: "es" } });
    return warnings.filter((text) => !text.includes("PLUGIN_TIMINGS")); // of a slow machine
  },
};
const warnings = await builds[name]();
const files = await readdir(dist, { recursive: true, withFileTypes: true });
const paths = files.filter((each) => each.isFile()).map((each) => join(each.parentPath, each.name));
const sizes = await Promise.all(paths.map(async (path) => [path, (await stat(path)).size]));
console.log(JSON.stringify({ warnings, sizes: Object.fromEntries(sizes) }));
