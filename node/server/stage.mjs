// Lays the package out as it is packed: `node stage.mjs BINARY FOLDER`.
//
// The sources hold no program; the one that was built for this platform is copied in, and the package says which
// platform that is, so that npm refuses it elsewhere.
import { chmodSync, copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const [binary, folder] = process.argv.slice(2);
if (!binary || !folder) {
  console.error('stage: write node stage.mjs BINARY FOLDER');
  process.exit(2);
}

const source = dirname(fileURLToPath(import.meta.url));
const program = process.platform === 'win32' ? 'bin/broca.exe' : 'bin/broca';
rmSync(folder, { recursive: true, force: true });
mkdirSync(join(folder, 'bin'), { recursive: true });
for (const name of ['index.js', 'index.d.ts', 'README.md']) {
  copyFileSync(join(source, name), join(folder, name));
}
for (const name of ['LICENSE', 'LICENSE-MIT', 'LICENSE-APACHE']) {
  copyFileSync(join(source, '..', '..', name), join(folder, name));
}
copyFileSync(binary, join(folder, program));
chmodSync(join(folder, program), 0o755);
const manifest = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8'));
const staged = { ...manifest, bin: { broca: program }, os: [process.platform], cpu: [process.arch] };
writeFileSync(join(folder, 'package.json'), `${JSON.stringify(staged, null, 2)}\n`);
