// What the fragments of TypeScript in the guides take for granted.

type Sdk = typeof import("@broca/sdk");
type Files = typeof import("node:fs/promises");

/** Stands where a guide leaves something out: … */
declare const ANY: any;

declare const Client: Sdk["Client"];
declare const tool: Sdk["tool"];
declare const z: typeof import("zod").z;
declare const readFile: Files["readFile"];
declare const writeFile: Files["writeFile"];
declare const url: string;
declare const key: string;
declare const sessionId: string;
declare const saved: string;
declare const storedCursor: string;
declare const client: import("@broca/sdk").Client;
declare const session: import("@broca/sdk").Session;
declare const read: import("@broca/sdk").Tool;
declare const count: import("@broca/sdk").Tool;
declare const archive: any;
