/** Turns: their steps, and their tools and handlers that run beside them. */

import { AsyncResource } from "node:async_hooks";
import type { Batch } from "./batch";
import { Approval, ApprovalWithdrawn, ToolCall, ToolCancel, ToolSettled, toolNameOf, type Decision } from "./calls";
import type { Plain } from "./content";
import { InternalError } from "./errors";
import { Event } from "./event";
import { Received, Sending, type Trace } from "./hooks";
import { strictJson } from "./json";
import { ApprovalAt, ApprovalWithdrawnAt, Kind, SendingAt, ToolCallAt, ToolCancelAt } from "./layout";
import { Done, Reply } from "./reply";
import type { Shell } from "./shell";
import { Gap, Notification, Status, Warning, deltaOf, type Step } from "./steps";
import { Stream } from "./stream";
import { Running, failureText, type ToolSet } from "./tools";

/** Handlers of a session that are no tools. */
export interface Handlers {
  /**
   * Decides about approvals in `ask()` and `reply()`, where nobody sees the steps: returns a decision, or answers the approval
   * itself. Without a handler, with one that throws, and with one that decides nothing, the call is denied.
   */
  onApproval?: ((approval: Approval) => Decision | void | Promise<Decision | void>) | undefined;
  /**
   * Sees each message before it leaves. It may send another one in its place, with trace headers of its own, or refuse, through
   * the methods of what it gets; a message that it does not answer goes as it is. If it throws, the turn ends with a
   * HookError of that text.
   */
  onSending?: ((sending: Sending) => void | Promise<void>) | undefined;
  /** Sees each answer of the service. What it throws is a warning of the process. */
  onReceived?: ((received: Received) => void) | undefined;
}

/** How a message is sent. */
export interface SendOptions {
  /** Cancels the turn. What waits for it rejects with the signal's reason as soon as the turn is quiet. */
  signal?: AbortSignal | undefined;
  /** Trace headers of the application's own tracing, for every request of the turn. */
  trace?: Trace | undefined;
}

/** Why an approval is denied when nobody looks at the steps. */
const NOBODY_TO_ASK = "the program has nobody to ask for consent (no approval handler is set)";

/** Why a manual tool fails when nobody looks at the steps. */
const NOBODY_TO_RUN = "Nobody is there to run this tool: the program only waits for the reply.";

/** Why a call fails that came after its turn was left. */
const LEFT = "The program left the turn before the call was started.";

/**
 * A turn under way: an async iterable of steps that ends after `done`, or throws what the turn failed with.
 *
 * Tools with functions are started as soon as their calls come and answer by themselves. Everything else that asks for an
 * answer (a tool without a function, an approval) waits for it until the service's time is over.
 *
 * A loop that is left early cancels the turn and waits until it is quiet; so does `await using`. A turn that is dropped without
 * either is cancelled when it is collected, with a warning.
 */
export class Turn implements AsyncIterableIterator<Step, undefined, undefined> {
  readonly #core: TurnCore;

  /** @internal */
  constructor(core: TurnCore) {
    this.#core = core;
    if (!core.isOver) dropped.register(this, core, core);
  }

  /** The next step. */
  next(): Promise<IteratorResult<Step, undefined>> {
    return this.#core.next();
  }

  /** Leaves the turn: cancels it and waits until it is quiet. What it failed with does not matter any more. */
  async return(): Promise<IteratorResult<Step, undefined>> {
    await this.#core.dismiss();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#core.dismiss();
  }

  /**
   * Drives the turn to its end and gives the reply. Approvals are decided by the session's onApproval handler; without one they
   * are denied, and calls of tools without a function fail, because nobody is there to answer.
   */
  reply(): Promise<Reply> {
    return this.#core.reply();
  }

  /**
   * Ends the turn early and resolves when it is quiet: the service has let go of it, or does not matter any more, and tools
   * have stopped or were abandoned. Steps that were still waiting are dropped; a loop elsewhere that
   * waits for one ends with a CancelledError, a loop that cancels its own turn just ends. A turn that had already come to its end is no
   * error. Rejects with what the turn failed with before it could be cancelled.
   */
  cancel(): Promise<void> {
    return this.#core.cancelAndWait();
  }
}

/** Cancels turns and subscriptions that were dropped before their end. */
export const dropped = new FinalizationRegistry<Stream>((core) => {
  if (core.isOver) return;
  if (core instanceof TurnCore) {
    process.emitWarning("a turn was dropped before its end and is cancelled; leave its loop, or call cancel() or reply()", "BrocaWarning");
  }
  void core.dismiss();
});

/** What a turn needs of its session. */
export interface TurnSetup {
  tools: ToolSet;
  handlers: Handlers;
  turns: Set<TurnCore>;
}

/** The turn behind the object that applications hold. */
export class TurnCore extends Stream {
  readonly #setup: TurnSetup;
  /** Where the turn was begun: its tools and handlers run there. */
  readonly #scope: AsyncResource | undefined;
  readonly #running = new Map<number, Running>();
  /** Calls that were asked about, for steps that name one only by its number. */
  readonly #names = new Map<number, string>();
  #reply: Reply | undefined;
  #unattended = false;
  protected readonly readsAhead = true;

  /** Begins with a command: a message, or the turn that another program left. */
  constructor(shell: Shell, setup: TurnSetup, command: { send: { message: Plain } } | { resume: object }, options: SendOptions) {
    super(shell);
    this.#setup = setup;
    const { onApproval, onSending, onReceived } = setup.handlers;
    const runsCode = !setup.tools.isEmpty || (onApproval ?? onSending ?? onReceived) !== undefined;
    this.#scope = runsCode ? new AsyncResource("BrocaTurn") : undefined;
    this.begin(options.signal, (reader) => shell.command(strictJson(command, "the message"), reader, options.trace));
    if (!this.isOver) setup.turns.add(this);
  }

  async reply(): Promise<Reply> {
    this.#unattended = true;
    this.drain();
    const failure = await this.end();
    if (failure !== undefined) throw failure.error;
    if (this.#reply === undefined) throw new InternalError("the turn ended without a reply");
    return this.#reply;
  }

  async cancelAndWait(): Promise<void> {
    if (this.isOver) return;
    await this.leave();
    this.settled();
    const error = this.failedBefore;
    if (error !== undefined) throw error;
  }

  override leave(): Promise<void> {
    for (const running of this.#running.values()) running.stop();
    return super.leave();
  }

  protected override get isUnattended(): boolean {
    return this.#unattended || this.isLeft;
  }

  /** Starts what a record asks for, or tells it to stop. */
  protected seen(batch: Batch, at: number): void {
    switch (batch.kind(at)) {
      case Kind.tool_call:
        this.#start(batch, at);
        break;
      case Kind.tool_cancel:
        this.#running.get(batch.number(at + ToolCancelAt.call) ?? 0)?.stop();
        break;
      case Kind.approval:
        this.#names.set(batch.number(at + ApprovalAt.call) ?? 0, batch.slice(at + ApprovalAt.tool_use_id));
        break;
      case Kind.sending:
        if (this.#setup.handlers.onSending !== undefined) this.#send(batch, at, this.#setup.handlers.onSending);
        break;
      case Kind.received:
        if (this.#setup.handlers.onReceived !== undefined) this.#receive(batch, at, this.#setup.handlers.onReceived);
        break;
      default:
    }
  }

  protected present(batch: Batch, at: number): Step | undefined {
    switch (batch.kind(at)) {
      case Kind.event:
        return new Event(batch, at);
      case Kind.delta:
        return deltaOf(batch, at);
      case Kind.tool_call:
        return new ToolCall(batch, at, this.shell, this.#setup.tools.runnable(toolNameOf(batch, at)) !== undefined);
      case Kind.tool_cancel:
        return new ToolCancel(this.#names.get(batch.number(at + ToolCancelAt.call) ?? 0));
      case Kind.approval:
        return new Approval(batch, at, this.shell);
      case Kind.approval_withdrawn:
        return new ApprovalWithdrawn(this.#names.get(batch.number(at + ApprovalWithdrawnAt.call) ?? 0));
      case Kind.sending:
        // Its handler answers.
        return this.#setup.handlers.onSending === undefined ? new Sending(batch, at, this.shell) : undefined;
      case Kind.done:
        this.#reply = new Reply(batch, at, undefined);
        return new Done(this.#reply);
      default:
        return presentOther(batch, at);
    }
  }

  protected unattended(batch: Batch, at: number): void {
    switch (batch.kind(at)) {
      case Kind.tool_call: {
        const call = batch.number(at + ToolCallAt.call) ?? 0;
        // Too late, or about a turn that is over: then the answer does not matter.
        if (!this.#running.has(call)) this.shell.answer(call, "fail", this.isLeft ? LEFT : NOBODY_TO_RUN);
        break;
      }
      case Kind.approval:
        if (!this.isLeft) this.#decide(new Approval(batch, at, this.shell));
        break;
      case Kind.sending:
        if (this.isLeft || this.#setup.handlers.onSending !== undefined) break;
        this.shell.answer(batch.number(at + SendingAt.call) ?? 0, "send", null);
        break;
      case Kind.done:
        this.#reply = new Reply(batch, at, undefined);
        break;
      default:
    }
  }

  protected ended(): void {
    this.#setup.turns.delete(this);
    dropped.unregister(this);
    // Whoever still runs was told to stop long ago, or its time was over.
    for (const running of this.#running.values()) running.stop();
    this.#running.clear();
  }

  #start(batch: Batch, at: number): void {
    const call = batch.number(at + ToolCallAt.call) ?? 0;
    const toolUseId = batch.slice(at + ToolCallAt.tool_use_id);
    this.#names.set(call, toolUseId);
    const tool = this.isLeft ? undefined : this.#setup.tools.runnable(toolNameOf(batch, at));
    if (tool === undefined) return;
    const running = new Running(batch, at, this.shell);
    this.#running.set(call, running);
    this.#inScope(() => void running.run(tool).then(() => this.#running.delete(call)));
  }

  #send(batch: Batch, at: number, handler: NonNullable<Handlers["onSending"]>): void {
    const sending = new Sending(batch, at, this.shell);
    const run = async (): Promise<void> => {
      try {
        await handler(sending);
        if (!sending.answered) sending.send();
      } catch (error) {
        sending.refuse(failureText(error));
      }
    };
    this.#inScope(() => void run());
  }

  #receive(batch: Batch, at: number, handler: NonNullable<Handlers["onReceived"]>): void {
    this.#inScope(() => {
      try {
        handler(new Received(batch, at));
      } catch (error) {
        process.emitWarning(`the onReceived handler threw ${failureText(error)}`, "BrocaWarning");
      }
    });
  }

  /** Has the approval handler decide; without one, denies. */
  #decide(approval: Approval): void {
    const handler = this.#setup.handlers.onApproval;
    if (handler === undefined) {
      approval.deny(NOBODY_TO_ASK);
      return;
    }
    const run = async (): Promise<void> => {
      try {
        const decision = await handler(approval);
        if (decision === undefined) approval.deny("the approval handler did not decide"); // changes nothing if it answered itself
        else approval.decide(decision);
      } catch (error) {
        process.emitWarning(`the onApproval handler failed: ${failureText(error)}`, "BrocaWarning");
        approval.deny("the approval handler failed");
      }
    };
    this.#inScope(() => void run());
  }

  #inScope(code: () => void): void {
    if (this.#scope === undefined) code();
    else this.#scope.runInAsyncScope(code);
  }
}

/** The step of a record that turns and subscriptions share. */
export function presentOther(batch: Batch, at: number): Step | undefined {
  switch (batch.kind(at)) {
    case Kind.event:
      return new Event(batch, at);
    case Kind.delta:
      return deltaOf(batch, at);
    case Kind.notification:
      return new Notification(batch, at);
    case Kind.gap:
      return new Gap(batch, at);
    case Kind.tool_settled:
      return new ToolSettled(batch, at);
    case Kind.status:
      return new Status(batch, at);
    case Kind.warning:
      return new Warning(batch, at);
    case Kind.received:
      return new Received(batch, at);
    default:
      return undefined; // a kind of a newer engine: skipped, as the layout says
  }
}
