/**
 * The body of one event stream: reads its source ahead within a bound, hands on what is ready in one piece, and says
 * something in silence. A class and callbacks on purpose: thousands are open at a time, and an async generator with its
 * promises and a closure per function would cost each of them 5 KB more.
 */
import { Readable } from 'node:stream';
import { encodeFrames } from './sse-frame.ts';

/** A piece is closed at this many bytes or items, and the source is not read further until it is taken. */
const MAX_PIECE_BYTES = 64 * 1024;
const MAX_PIECE_ITEMS = 500;
/** A small buffer of our own: what a slow reader has not taken stays in the log, not here. */
const HIGH_WATER_MARK_BYTES = 16 * 1024;
/** Clients would otherwise see no headers before the first event. */
const OPENING = encodeFrames([{ comment: 'ok' }]);
const HEARTBEAT = encodeFrames([{ comment: '' }]);
const COME_BACK = encodeFrames([{ comment: 'the server is closing', retry: 1000 }]);

export interface SseBodyOptions<T> {
  /** Called at the first read. Must end by itself when the stream is over. */
  open(): AsyncIterator<T>;
  encode(item: T): Buffer;
  /** A comment is sent after so long without an item, when the reader has taken everything. */
  keepaliveMs: number;
  /** The source or `encode` threw; the stream is destroyed. */
  onFailure(error: unknown): void;
  /** Called once: the source has ended or was ended, and nothing of it runs any more. */
  onOver(): void;
}

/** Yields bytes; ends after the source's last item, or by `finish`. Destroying it ends the source. */
export class SseBody<T> extends Readable {
  readonly #options: SseBodyOptions<T>;
  #source: AsyncIterator<T> | null = null;
  #heartbeat: NodeJS.Timeout | null = null;
  #parts: Buffer[] = [];
  #bytes = 0;
  #items = 0;
  /** The reader has asked for more and got nothing yet. */
  #wanted = false;
  /** A `next` of the source is under way. */
  #reading = false;
  /** A turn of the event loop, or the end of this one, is waited for. */
  #scheduled = false;
  #sourceOver = false;
  #finishing = false;
  readonly #onItem = (result: IteratorResult<T>): void => this.#take(result);
  readonly #onError = (error: unknown): void => this.#fail(error);
  readonly #onTurn = (): void => {
    this.#scheduled = false;
    if (this.#wanted) this.#give();
  };

  constructor(options: SseBodyOptions<T>) {
    super({ objectMode: false, highWaterMark: HIGH_WATER_MARK_BYTES });
    this.#options = options;
  }

  /** Ends the stream in the middle, with a hint when to come back. */
  finish(): void {
    this.#finishing = true;
    if (this.#wanted && !this.#scheduled) this.#give();
  }

  override _read(): void {
    if (this.#source === null) {
      this.push(OPENING);
      this.#source = this.#options.open();
      this.#heartbeat = setTimeout(() => this.#beat(), this.#options.keepaliveMs);
      return;
    }
    this.#wanted = true;
    if (!this.#scheduled) this.#give();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    if (this.#heartbeat !== null) clearTimeout(this.#heartbeat);
    this.#parts = [];
    const returned = this.#source?.return?.();
    if (returned === undefined) this.#options.onOver();
    else
      returned.then(
        () => this.#options.onOver(),
        (failure: unknown) => this.#failLate(failure),
      );
    this.#sourceOver = true;
    done(error);
  }

  /** Hands on what is ready; reads the source when nothing is. */
  #give(): void {
    if (this.destroyed) return;
    if (this.#finishing) {
      this.#wanted = false;
      this.push(COME_BACK);
      this.push(null);
      return;
    }
    if (this.#bytes === 0) {
      if (this.#sourceOver) this.push(null);
      else this.#readOn();
      return;
    }
    const [only] = this.#parts;
    const piece = this.#parts.length === 1 && only !== undefined ? only : Buffer.concat(this.#parts, this.#bytes);
    const full = this.#isFull();
    this.#parts = [];
    this.#bytes = 0;
    this.#items = 0;
    this.#wanted = false;
    this.#heartbeat?.refresh();
    // More is probably ready: others have their turn first.
    if (full) this.#afterOthers();
    else this.#readOn();
    this.push(piece);
  }

  #readOn(): void {
    if (this.#reading || this.#sourceOver || this.#source === null || this.#isFull()) return;
    this.#reading = true;
    this.#source.next().then(this.#onItem, this.#onError);
  }

  #take(result: IteratorResult<T>): void {
    this.#reading = false;
    if (this.destroyed) return;
    if (result.done === true) {
      this.#sourceOver = true;
      this.#giveSoon();
      return;
    }
    try {
      const part = this.#options.encode(result.value);
      this.#items += 1;
      this.#bytes += part.length;
      if (part.length > 0) this.#parts.push(part);
    } catch (error) {
      this.#fail(error);
      return;
    }
    if (this.#bytes > 0) this.#giveSoon();
    if (this.#bytes === 0 && this.#isFull()) {
      this.#items = 0;
      this.#afterOthers();
    } else this.#readOn();
  }

  /** nextTick runs when the microtasks are drained, so items that are ready one after the other go out together. */
  #giveSoon(): void {
    if (this.#scheduled || !this.#wanted) return;
    this.#scheduled = true;
    process.nextTick(this.#onTurn);
  }

  #afterOthers(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(this.#onTurn);
  }

  #beat(): void {
    if (this.#wanted && this.#bytes === 0 && !this.#scheduled) {
      this.#wanted = false;
      this.push(HEARTBEAT);
    }
    this.#heartbeat?.refresh();
  }

  #isFull(): boolean {
    return this.#bytes >= MAX_PIECE_BYTES || this.#items >= MAX_PIECE_ITEMS;
  }

  #fail(error: unknown): void {
    this.#sourceOver = true;
    if (this.destroyed) return;
    this.#options.onFailure(error);
    this.destroy();
  }

  #failLate(error: unknown): void {
    this.#options.onFailure(error);
    this.#options.onOver();
  }
}
