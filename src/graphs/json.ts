/** Any JavaScript value as JSON, for events. A copy: what a graph does to its objects afterwards is not seen. */
import type { Json } from '#src/events/event.ts';

/** Deeper than any real state; keeps a hostile one from overflowing the stack. */
const MAX_DEPTH = 256;

/** Converts objects of a kind the caller knows better; undefined = treat it like any other object. */
export type ConvertObject = (value: object) => Json | undefined;

/**
 * Never throws. What JSON cannot hold becomes a string that says so: `12n`, `NaN`, `[function name]`, `[circular]`,
 * `[unreadable]` (a getter that throws), `[nested too deeply]`. Dates and everything else with toJSON as JSON.stringify
 * does it; a Map with string keys as an object, any other as pairs; a Set as an array; bytes as a base64 data URL; an
 * Error as {name, message}, without its stack. Properties that are undefined are left out. Strings are kept as they are, NUL and
 * lone surrogates included.
 */
export function toJson(value: unknown, convertObject?: ConvertObject): Json {
  return convert(value, convertObject, new Set());
}

function convert(value: unknown, special: ConvertObject | undefined, path: Set<object>): Json {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return value;
    case 'number':
      return Number.isFinite(value) ? value + 0 : String(value); // + 0: JSON has no -0
    case 'bigint':
      return `${value}n`;
    case 'undefined':
      return null;
    case 'symbol':
      return '[symbol]';
    case 'function':
      return '[function]';
    case 'object':
      return value === null ? null : guarded(value, special, path);
  }
}

function guarded(value: object, special: ConvertObject | undefined, path: Set<object>): Json {
  if (path.has(value)) return '[circular]';
  if (path.size >= MAX_DEPTH) return '[nested too deeply]';
  path.add(value);
  try {
    return special?.(value) ?? fromObject(value, special, path);
  } catch {
    return '[unreadable]'; // the value's own code threw: a getter, a proxy, toJSON
  } finally {
    path.delete(value);
  }
}

function fromObject(value: object, special: ConvertObject | undefined, path: Set<object>): Json {
  if (Array.isArray(value)) return Array.from(value, (item) => convert(item, special, path));
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return fromBinary(value);
  if (value instanceof Error) return { name: String(value.name), message: String(value.message) };
  if (value instanceof Map) return fromMap(value, special, path);
  if (value instanceof Set) return Array.from(value, (item) => convert(item, special, path));
  if (value instanceof RegExp) return String(value);
  if (value instanceof Promise) return '[promise]';
  if ('toJSON' in value && typeof value.toJSON === 'function') {
    const json: unknown = value.toJSON('');
    if (json !== value) return convert(json, special, path);
  }
  const result: { [key: string]: Json } = {};
  for (const key of Object.keys(value)) setProperty(result, key, readProperty(value, key, special, path));
  return result;
}

/** One property that throws does not cost the others. */
function readProperty(
  value: object,
  key: string,
  special: ConvertObject | undefined,
  path: Set<object>,
): Json | undefined {
  let property: unknown;
  try {
    property = (value as Record<string, unknown>)[key];
  } catch {
    return '[unreadable]';
  }
  return property === undefined ? undefined : convert(property, special, path);
}

/** Assignment would change the prototype when the key is `__proto__`. */
function setProperty(target: { [key: string]: Json }, key: string, value: Json | undefined): void {
  if (value === undefined) return;
  if (key !== '__proto__') target[key] = value;
  else Object.defineProperty(target, key, { value, enumerable: true, writable: true, configurable: true });
}

function fromMap(map: Map<unknown, unknown>, special: ConvertObject | undefined, path: Set<object>): Json {
  const entries = [...map];
  if (entries.some(([key]) => typeof key !== 'string')) {
    return entries.map(([key, item]) => [convert(key, special, path), convert(item, special, path)]);
  }
  const result: { [key: string]: Json } = {};
  for (const [key, item] of entries) setProperty(result, String(key), convert(item, special, path));
  return result;
}

function fromBinary(value: ArrayBuffer | ArrayBufferView): Json {
  if (ArrayBuffer.isView(value) && !(value instanceof Uint8Array) && !(value instanceof DataView)) {
    return Array.from(value as unknown as ArrayLike<number | bigint>, (item) => convert(item, undefined, new Set()));
  }
  const bytes = ArrayBuffer.isView(value)
    ? Buffer.from(value.buffer, value.byteOffset, value.byteLength)
    : Buffer.from(value);
  return `data:application/octet-stream;base64,${bytes.toString('base64')}`;
}

/** How JSON writes NUL and lone surrogates. */
const REFUSED_BY_JSONB = /\\u(?:0000|d[89a-f])/;

/** JSON that jsonb takes: NUL and lone surrogates, which it refuses, become U+FFFD. Only names and metadata go here. */
export function storableJson(value: unknown): string {
  const json = JSON.stringify(value);
  // They are rare, and looking at every value of every checkpoint costs several times what writing it does.
  if (!REFUSED_BY_JSONB.test(json)) return json;
  return JSON.stringify(value, (_key, inner: unknown) =>
    typeof inner === 'string' ? inner.toWellFormed().replaceAll('\u0000', '\ufffd') : inner,
  );
}
