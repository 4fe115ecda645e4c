/**
 * No new model or tool call and no new step while this worker may have been given up: they cost money and act on the world,
 * and no fence of ours can take them back. By its own monotonic clock, a lease after sending the last successful renewal.
 */
import { BaseCallbackHandler } from '@langchain/core/callbacks/base';

export interface Lease {
  /** True while the last successful renewal was sent less than a lease ago. */
  holds(): boolean;
  /** Resolves at the next successful renewal. */
  renewed(): Promise<void>;
}

/**
 * For `callbacks` of graph.stream: model and tool calls wait here until the lease holds, or until the run is stopped. Steps do
 * so in the saver, after the checkpoint that they follow (`pass`), where they wait for it: with durability `sync`.
 */
export class LeaseGate extends BaseCallbackHandler {
  override readonly name = 'lease-gate';
  override readonly awaitHandlers = true;
  override readonly raiseError = true;
  override readonly ignoreChain = true;
  readonly #lease: Lease;
  readonly #signal: AbortSignal;

  constructor(lease: Lease, signal: AbortSignal) {
    super();
    this.#lease = lease;
    this.#signal = signal;
  }

  override handleChatModelStart(): Promise<void> | undefined {
    return this.pass();
  }

  override handleLLMStart(): Promise<void> | undefined {
    return this.pass();
  }

  override handleToolStart(): Promise<void> | undefined {
    return this.pass();
  }

  /** @throws what the run was stopped with */
  pass(): Promise<void> | undefined {
    this.#signal.throwIfAborted();
    return this.#lease.holds() ? undefined : this.#untilRenewed();
  }

  async #untilRenewed(): Promise<void> {
    const stopped = Promise.withResolvers<never>();
    const onAbort = (): void => stopped.reject(this.#signal.reason);
    this.#signal.addEventListener('abort', onAbort, { once: true });
    try {
      while (!this.#lease.holds()) await Promise.race([this.#lease.renewed(), stopped.promise]);
      // The renewal that just succeeded also said which runs are still ours; a lost one is stopped by now.
      this.#signal.throwIfAborted();
    } finally {
      this.#signal.removeEventListener('abort', onAbort);
    }
  }
}
