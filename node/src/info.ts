/** How sessions stand, and what is kept with them. */

import { ask, unexpected } from "./asking";
import { InvalidArgumentError, MalformedError } from "./errors";
import type { Shell } from "./shell";

/** The turn of a session at one moment. */
export interface TurnInfo {
  status: "idle" | "running" | "paused" | (string & {});
  /** The client key whose turn it is. */
  owner: string | undefined;
  /** For how long nobody takes a paused turn over. */
  expiresInMs: number | undefined;
  /** How many calls wait for theirs. */
  waiting: number;
}

/** How a session stands. */
export interface SessionInfo {
  sessionId: string;
  state: "open" | "closed" | "error" | (string & {});
  /** When it was opened, as the service writes times. */
  createdAt: string;
  /** When its last event was logged. */
  updatedAt: string;
  closedAt: string | undefined;
  /** The client key that opened it. */
  createdBy: string;
  /** The client keys that drive it. */
  drivers: string[];
  turn: TurnInfo;
  /** The profile as the service shows it. */
  profile: any;
  /** How the history is compacted: `client` or `auto`. */
  compaction: string;
  /** What its participants keep with it. */
  metadata: Record<string, any>;
  /** How often that was changed; see {@link UpdateOptions}. */
  metadataVersion: number;
  /** How many events its log has. */
  events: number;
  /** The last of them: a cursor from which a subscription shows what comes. */
  lastEventId: string | undefined;
}

/** How what is kept with a session is changed. */
export interface UpdateOptions {
  /** The version that is to be changed. When somebody else has changed it since, the update throws an ApiError of the type `version_conflict`. */
  version?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** How the sessions of a client are listed. */
export interface SessionsOptions {
  /** At most this many sessions are asked for at once; the service's default otherwise. */
  pageSize?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** Asks how a session stands, or changes what is kept with it. */
export async function info(shell: Shell, command: { info: object } | { update: object }, signal: AbortSignal | undefined): Promise<SessionInfo> {
  return infoOf((await ask(shell, command, signal)).value);
}

/** The sessions of a client, page by page. */
export async function* sessions(shell: Shell, { pageSize, signal }: SessionsOptions): AsyncGenerator<SessionInfo, undefined, undefined> {
  for (let cursor: string | null = null; ; ) {
    const { value } = await ask(shell, { sessions: { cursor, limit: pageSize ?? null } }, signal);
    if (!Array.isArray(value?.items)) throw unexpected("listing the sessions");
    yield* (value.items as unknown[]).map(infoOf);
    cursor = (value.next_cursor as string | null | undefined) ?? null;
    if (cursor === null) return undefined;
  }
}

/** The metadata, if it is an object. */
export function metadataOf(value: unknown): object {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw new InvalidArgumentError("the metadata of a session is an object");
}

function infoOf(value: any): SessionInfo {
  for (const name of ["session_id", "state", "created_at", "updated_at", "created_by"]) {
    if (typeof value?.[name] !== "string") throw new MalformedError(`what the service tells of a session cannot be read: it has no ${name}`);
  }
  const turn = value.turn ?? {};
  return {
    sessionId: value.session_id,
    state: value.state,
    createdAt: value.created_at,
    updatedAt: value.updated_at,
    closedAt: value.closed_at ?? undefined,
    createdBy: value.created_by,
    drivers: value.drivers ?? [],
    turn: { status: turn.status ?? "idle", owner: turn.owner ?? undefined, expiresInMs: turn.expires_in_ms ?? undefined, waiting: turn.waiting ?? 0 },
    profile: value.profile,
    compaction: value.compaction ?? "",
    metadata: value.metadata ?? {},
    metadataVersion: value.metadata_version ?? 0,
    events: value.events ?? 0,
    lastEventId: value.last_event_id ?? undefined,
  };
}
