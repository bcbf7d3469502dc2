/**
 * The absolute path of the `broca` program of this package.
 *
 * @throws Error when the package was made for another platform or is damaged.
 */
export function binaryPath(): string;
