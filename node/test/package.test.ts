/** The package: its two module forms, its loader, and what it says when the native part is missing. */

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { HOME, run } from "./service";

const PACKAGE = join(HOME, "node_modules", "@broca", "sdk");

test("both module forms have the same names and the same classes", async () => {
  for (const entry of ["@broca/sdk", "@broca/sdk/testing"]) {
    const { code, out, err } = await run(`
      import * as esm from "${entry}";
      import { createRequire } from "node:module";
      const cjs = createRequire(import.meta.url)("${entry}");
      const names = Object.keys(cjs).sort();
      console.log(JSON.stringify(names) === JSON.stringify(Object.keys(esm).sort()) && names.every((name) => cjs[name] === esm[name]), names.length > 0);`);
    assert.deepEqual([code, out], [0, "true true\n"], err);
  }
});

test("nothing runs at installation, and nothing else is installed", () => {
  const told = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8")) as Record<string, unknown>;
  assert.equal(told["scripts"], undefined);
  assert.equal(told["dependencies"], undefined);
  assert.ok(readdirSync(PACKAGE).every((name) => /^(dist|README\.md|package\.json|broca\..*\.node)$/.test(name)));
});

test("a bundler may pass over native packages that are not installed", () => {
  const lines = readFileSync(join(PACKAGE, "dist", "native.js"), "utf8").split("\n");
  const guarded = lines.slice(lines.findIndex((line) => line.includes("function requireOf")));
  const first = guarded.findIndex((line) => line.includes('require("@broca/'));
  const last = guarded.map((line) => line.includes('require("@broca/')).lastIndexOf(true);
  const opened = guarded.findIndex((line) => /^\s*try \{/.test(line));
  const closed = guarded.findIndex((line) => /^\s*\}?\s*catch\b/.test(line));
  assert.ok(first > 0 && opened < first && opened >= 0 && last < closed, `${[opened, first, last, closed]}`);
});

/** A copy of the package that may be spoilt. */
function copy(spoil: (folder: string) => void): string {
  const folder = mkdtempSync(join(tmpdir(), "broca-package-"));
  cpSync(PACKAGE, folder, { recursive: true });
  spoil(folder);
  return folder;
}

function failure(folder: string): Error & { kind?: string } {
  try {
    createRequire(__filename)(join(folder, "dist", "index.js"));
  } catch (error) {
    return error as Error;
  } finally {
    rmSync(folder, { recursive: true });
  }
  throw new Error("it was loaded");
}

test("without the native part one error names the platform, the ABI and what was tried", () => {
  const error = failure(copy((folder) => {
    for (const name of readdirSync(folder)) if (name.endsWith(".node")) rmSync(join(folder, name));
  }));
  assert.equal(error.kind, "internal");
  for (const word of [process.platform, process.arch, process.version, process.versions.modules, `broca.${process.platform}-${process.arch}`, "@broca/"]) {
    assert.ok(error.message.includes(word), `${word} is not in: ${error.message}`);
  }
});

test("a native part of another version is refused with both versions", () => {
  const error = failure(copy((folder) => {
    const file = join(folder, "package.json");
    writeFileSync(file, readFileSync(file, "utf8").replace(/"version": "[^"]*"/, '"version": "9.9.9"'));
  }));
  assert.equal(error.kind, "version_mismatch");
  assert.match(error.message, /9\.9\.9.*0\.\d+\.\d+/);
});
