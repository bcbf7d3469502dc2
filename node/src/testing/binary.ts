/** Finds the `broca` command and checks that it is of this package's version. */

import { execFile } from "node:child_process";
import { accessSync, constants, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join, resolve } from "node:path";
import { ServerError } from "./process.js";

/** The environment variable that names the command. */
const VARIABLE = "BROCA_BINARY";

/** There is no `broca` command where one was looked for. */
export class BinaryNotFoundError extends ServerError {
  override name = "BinaryNotFoundError";
}

/** The `broca` command is of another version than this package. */
export class VersionMismatchError extends ServerError {
  override name = "VersionMismatchError";
}

interface Place {
  path: string;
  /** What named it. */
  by: string;
}

/** Programs that were found to be of the right version, as they were then. */
const checked = new Set<string>();

/**
 * The path of the `broca` command of this package's version.
 *
 * It is looked for in this order, and the first place that names one decides: `given`, the environment variable
 * `BROCA_BINARY`, the package `@broca/server`, `PATH`.
 *
 * @throws BinaryNotFoundError when there is none, or no program at the place that was named
 * @throws VersionMismatchError when it is of another version
 * @throws ServerError when it does not run
 */
export async function findBinary(given?: string): Promise<string> {
  const version = packageVersion();
  const place = placeOf(given, version);
  const path = resolve(place.path);
  if (!isProgram(path)) {
    throw new BinaryNotFoundError(`${path} (${place.by}) is no program that can be run`);
  }
  const about = statSync(path);
  const fact = `${path} ${about.mtimeMs} ${about.size}`;
  if (!checked.has(fact)) {
    await check(path, place.by, version);
    checked.add(fact);
  }
  return path;
}

/** The version of this package: the folder of the sources and that of what is built from them are equally deep. */
function packageVersion(): string {
  const manifest: unknown = JSON.parse(readFileSync(join(__dirname, "..", "..", "package.json"), "utf8"));
  return String((manifest as { version: unknown }).version);
}

function placeOf(given: string | undefined, version: string): Place {
  if (given !== undefined) return { path: given, by: "binary" };
  const named = process.env[VARIABLE];
  if (named) return { path: named, by: VARIABLE };
  const packaged = fromPackage();
  if (packaged !== undefined) return { path: packaged, by: "the package @broca/server" };
  const name = process.platform === "win32" ? "broca.exe" : "broca";
  const folders = (process.env["PATH"] ?? "").split(delimiter).filter((folder) => folder !== "");
  const found = folders.map((folder) => join(folder, name)).find(isProgram);
  if (found !== undefined) return { path: found, by: "PATH" };
  throw new BinaryNotFoundError(
    `there is no broca command: npm install --save-dev @broca/server@${version}, ` +
      `set ${VARIABLE} to its path, or put it on PATH`,
  );
}

/** The program of `@broca/server`, from where this package is or from where the tests run. */
function fromPackage(): string | undefined {
  for (const from of [__filename, join(process.cwd(), "package.json")]) {
    const require = createRequire(from);
    let entry: string;
    try {
      entry = require.resolve("@broca/server");
    } catch {
      continue;
    }
    try {
      return (require(entry) as { binaryPath(): string }).binaryPath();
    } catch (error) {
      throw new BinaryNotFoundError(`@broca/server does not tell its program: ${String(error)}`, { cause: error });
    }
  }
  return undefined;
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

async function check(path: string, by: string, version: string): Promise<void> {
  const output = await new Promise<string>((done, failed) => {
    execFile(path, ["version"], { timeout: 30_000 }, (error, stdout) => {
      if (error) failed(new ServerError(`${path} (${by}) cannot be run: ${error.message}`));
      else done(stdout);
    });
  });
  const [name, found, ...more] = output.trim().split(/\s+/);
  if (name !== "broca" || found === undefined || more.length > 0) {
    throw new ServerError(`${path} (${by}) is not the broca command: "version" told no version`);
  }
  if (found !== version) {
    throw new VersionMismatchError(
      `${path} (${by}) is broca ${found}, and this package is ${version}: they must be equal; ` +
        `npm install --save-dev @broca/server@${version}, or name another with ${VARIABLE}`,
    );
  }
}
