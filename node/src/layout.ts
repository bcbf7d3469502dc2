// Generated from bindings/bridge/src/layout.rs by `cargo run -p broca-node --bin layout-ts`.

/** The version of the layout of batches that this file describes. */
export const LAYOUT_VERSION = 1;

/** Stands for an absent text (as its offset) or number (as both words). */
export const ABSENT = 4294967295;

/** Kinds of records. */
export const enum Kind {
  event = 1,
  notification = 2,
  delta = 3,
  gap = 4,
  tool_call = 5,
  tool_cancel = 6,
  tool_settled = 7,
  approval = 8,
  approval_withdrawn = 9,
  status = 10,
  warning = 11,
  sending = 12,
  received = 13,
  done = 14,
  finished = 15,
  failed = 16,
  resolve = 64,
  connect = 65,
  start_tls = 66,
  write = 67,
  pause_read = 68,
  resume_read = 69,
  close = 70,
  timer = 71,
  busy = 72,
  ready = 73,
  log = 96,
  log_dropped = 97,
}

export const enum EventAt {
  id = 2,
  event_type = 4,
  session_id = 6,
  client_key_id = 8,
  created_at = 10,
  payload = 12,
  raw = 14,
}

export const enum NotificationAt {
  method = 2,
  raw = 4,
}

export const enum DeltaAt {
  delta_kind = 2,
  link = 3,
  text = 5,
}

export const enum GapAt {
  lost = 2,
  count = 3,
  limit = 5,
  cursor = 7,
  after = 9,
}

export const enum ToolCallAt {
  call = 2,
  tool_use_id = 4,
  name = 6,
  input = 8,
  idempotency_key = 10,
  may_have_run = 12,
}

export const enum ToolCancelAt {
  call = 2,
}

export const enum ToolSettledAt {
  tool_use_id = 2,
  outcome = 4,
  name = 6,
}

export const enum ApprovalAt {
  call = 2,
  tool_use_id = 4,
  name = 6,
  input = 8,
  idempotency_key = 10,
  may_have_run = 12,
  server_side = 13,
}

export const enum ApprovalWithdrawnAt {
  call = 2,
}

export const enum StatusAt {
  state = 2,
  delay_ms = 4,
  error_kind = 6,
  why = 8,
  position = 10,
  waiting = 12,
}

export const enum WarningAt {
  class = 2,
  message = 4,
}

export const enum SendingAt {
  call = 2,
  round = 4,
  message = 5,
}

export const enum ReceivedAt {
  round = 2,
  message = 3,
}

export const enum DoneAt {
  text = 2,
  message = 4,
  usage = 6,
  rounds = 8,
  events = 9,
  tool_calls = 11,
  session = 12,
}

export const enum FinishedAt {
  outcome = 2,
  value = 4,
}

export const enum FailedAt {
  code = 2,
  kind = 3,
  message = 5,
  retry = 7,
  details = 9,
}

export const enum ResolveAt {
  req = 2,
  host = 4,
}

export const enum ConnectAt {
  conn = 2,
  address = 4,
  port = 6,
  server_name = 7,
}

export const enum StartTlsAt {
  conn = 2,
  server_name = 4,
}

export const enum WriteAt {
  conn = 2,
  bytes = 4,
}

export const enum PauseReadAt {
  conn = 2,
}

export const enum ResumeReadAt {
  conn = 2,
}

export const enum CloseAt {
  conn = 2,
  abort = 4,
}

export const enum TimerAt {
  at = 2,
}

export const enum BusyAt {
  busy = 2,
}

export const enum ReadyAt {
  op = 2,
}

export const enum LogAt {
  level = 2,
  message = 3,
}

export const enum LogDroppedAt {
  count = 2,
}
