/** The files of a bundle in a folder, in Node. */

import { errorText, reject } from "../errors.js";
import { REMEDY, checkLimit, type Files } from "./bundle.js";

/** Return the files in a folder. Nothing outside it is read. */
export async function openFolder(location: string | URL): Promise<Files> {
  const [fs, paths, { fileURLToPath }, { createHash }] = await Promise.all([
    import("node:fs"),
    import("node:path"),
    import("node:url"),
    import("node:crypto"),
  ]);
  const folder = String(location).startsWith("file:") ? fileURLToPath(location) : String(location);
  const expected = "a bundle folder made by lopa-export onnx";
  const isWithin = (path: string): boolean => {
    const relative = paths.relative(fs.realpathSync(folder), fs.realpathSync(path));
    return !relative.startsWith("..") && !paths.isAbsolute(relative);
  };
  const checkedPath = (name: string): string => {
    const path = paths.join(folder, name);
    try {
      if (fs.statSync(path).isFile() && isWithin(path)) return path;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") {
        reject(`${path}: ${errorText(error)}`, expected, REMEDY, error);
      }
      reject(`${path} is missing`, expected, REMEDY);
    }
    reject(`${path} is no regular file inside the bundle`, expected, REMEDY);
  };
  return {
    location: folder,
    async read(name, _, max) {
      const path = checkedPath(name);
      checkLimit(path, fs.statSync(path).size, max);
      return new Uint8Array(await fs.promises.readFile(path));
    },
    async size(name) {
      return fs.statSync(checkedPath(name)).size;
    },
    async onDisk(name) {
      const path = checkedPath(name);
      const hash = createHash("sha256");
      for await (const chunk of fs.createReadStream(path)) hash.update(chunk as Uint8Array);
      return { path: paths.resolve(path), sha256: hash.digest("hex") };
    },
  };
}
