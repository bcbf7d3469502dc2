// Writes the ES module of each entry of the package from the export list of its CommonJS one, so that both have the
// same names and there is one copy of the code.
import { createRequire } from "node:module";
import { existsSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const dist = join(dirname(fileURLToPath(import.meta.url)), "dist");

for (const entry of ["index", "testing/index"]) {
  const file = join(dist, `${entry}.js`);
  if (!existsSync(file)) continue;
  const names = Object.keys(require(file)).sort();
  const lines = [`import all from "./index.js";`, ...names.map((name) => `export const ${name} = all.${name};`)];
  writeFileSync(join(dist, `${entry}.mjs`), `${lines.join("\n")}\n`);
  writeFileSync(join(dist, `${entry}.d.mts`), `export * from "./index.js";\n`);
}
