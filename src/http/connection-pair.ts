/** A connection between two ends of one process: no socket, and otherwise what HTTP expects of one. */
import { Duplex } from 'node:stream';

/** The other end went away before it had written all. */
class EndGone extends Error {
  override readonly name = 'EndGone';
  constructor() {
    super('other side closed');
  }
}

/** What is written to one end is read at the other. A write is done when the reader has room for it. */
class End extends Duplex {
  #other: End | null = null;
  /** The other end's write, which waits until what it wrote is wanted here. */
  #taken: (() => void) | null = null;
  #idle: NodeJS.Timeout | null = null;

  /** Makes two ends one connection. */
  meet(other: End): void {
    this.#other = other;
    other.#other = this;
  }

  /** As sockets have it: emits `timeout` after so many milliseconds in which nothing was taken on either way; 0 ends that. */
  setTimeout(ms: number, onTimeout?: () => void): this {
    if (this.#idle !== null) clearTimeout(this.#idle);
    this.#idle = ms === 0 ? null : setTimeout(() => this.emit('timeout'), ms).unref();
    if (onTimeout !== undefined) this.once('timeout', onTimeout);
    return this;
  }

  override _read(): void {
    const taken = this.#taken;
    this.#taken = null;
    taken?.();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    const other = this.#other;
    if (other === null) throw new Error('this end has no other');
    other.#receive(chunk, () => {
      this.#idle?.refresh();
      done();
    });
  }

  #receive(chunk: Buffer, taken: () => void): void {
    this.#idle?.refresh();
    if (this.push(chunk)) taken();
    else this.#taken = taken;
  }

  override _final(done: () => void): void {
    this.#other?.push(null);
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    if (this.#idle !== null) clearTimeout(this.#idle);
    const other = this.#other;
    // One that had said all leaves the other to read it.
    const saidAll = this.writableFinished;
    process.nextTick(() => {
      if (!saidAll && other !== null && !other.destroyed) other.destroy(new EndGone());
    });
    done(error);
  }
}

/** The two ends of a new connection. Destroying one breaks the connection, as with a socket. */
export function connectionPair(): [Duplex, Duplex] {
  const [near, far] = [new End(), new End()];
  near.meet(far);
  return [near, far];
}
