'use strict';

const { existsSync } = require('node:fs');
const { join } = require('node:path');

/** The absolute path of the `broca` program of this package. */
function binaryPath() {
  const name = process.platform === 'win32' ? 'broca.exe' : 'broca';
  const path = join(__dirname, 'bin', name);
  if (!existsSync(path)) {
    throw new Error(`@broca/server holds no program for ${process.platform} ${process.arch}: ${path} is missing`);
  }
  return path;
}

exports.binaryPath = binaryPath;
