/** A payload as Redis holds it: its JSON, which begins with `{`, or, when it is long, a marker byte and its deflate. */
import { promisify } from 'node:util';
import { constants, deflate, inflate } from 'node:zlib';
import { MAX_PAYLOAD_BYTES } from './codec.ts';

const COMPRESS_ABOVE_BYTES = 64 * 1024;
const DEFLATED = Buffer.from([0x01]);
const BRACE = 0x7b;
const deflateAsync = promisify(deflate);
const inflateAsync = promisify(inflate);

/** Whether `toStored` will compress it. Cheap for short payloads: no UTF-8 byte count is under a third of it. */
export function isLong(payload: string): boolean {
  return payload.length * 3 > COMPRESS_ABOVE_BYTES && Buffer.byteLength(payload) > COMPRESS_ABOVE_BYTES;
}

/** The stored bytes of a long payload. Speed before size: the appends of every run wait for it. */
export async function toStored(payload: string): Promise<Buffer> {
  const deflated = await deflateAsync(payload, { level: constants.Z_BEST_SPEED });
  return Buffer.concat([DEFLATED, deflated]);
}

/** The payload of stored bytes; a promise only when they must be inflated. It rejects when they are not ours. */
export function fromStored(bytes: Buffer): string | Promise<string> {
  if (bytes[0] === BRACE) return bytes.toString('utf8');
  return inflated(bytes);
}

async function inflated(bytes: Buffer): Promise<string> {
  if (bytes[0] !== DEFLATED[0]) throw new Error('stored bytes begin with an unknown marker');
  const payload = await inflateAsync(bytes.subarray(1), { maxOutputLength: MAX_PAYLOAD_BYTES });
  return payload.toString('utf8');
}
