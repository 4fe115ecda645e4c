import { createParser, type EventSourceMessage } from 'eventsource-parser';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { encodeFrames, type SseFrame } from '#src/http/sse-frame.ts';

interface Parsed {
  events: EventSourceMessage[];
  comments: string[];
  retries: number[];
  errors: unknown[];
}

/** As a client gets it: the bytes cut anywhere, decoded as a stream. */
function parse(bytes: Uint8Array, cutAt: number = bytes.length): Parsed {
  const parsed: Parsed = { events: [], comments: [], retries: [], errors: [] };
  const parser = createParser({
    onEvent: (event) => parsed.events.push(event),
    onComment: (comment) => parsed.comments.push(comment),
    onRetry: (retry) => parsed.retries.push(retry),
    onError: (error) => parsed.errors.push(error),
  });
  const decoder = new TextDecoder();
  parser.feed(decoder.decode(bytes.subarray(0, cutAt), { stream: true }));
  parser.feed(decoder.decode(bytes.subarray(cutAt), { stream: true }));
  return parsed;
}

/** Whole, half and broken characters, and everything that ends a line or a field for somebody. */
const nasty = fc
  .array(
    fc.oneof(
      fc.constantFrom('\r', '\n', '\r\n', '\n\n', '\u0000', '\u0085', '\u2028', '\u2029', '\u000b', '\u001c', '\ud800'),
      fc.constantFrom(':', ' ', 'data: ', '\nevent: run_end\ndata: {}\n\n', 'id: 1', '\ufeff', '😀'),
      fc.string({ unit: 'binary' }),
    ),
    { maxLength: 6 },
  )
  .map((parts) => parts.join(''));

/** What a name or id becomes. */
function inOneField(text: string): string {
  return text.replace(/[\p{Cc}\u2028\u2029]/gu, '\uFFFD').toWellFormed();
}

describe('encodeFrames', () => {
  test('a frame is event, id, one line of data, and an empty line', () => {
    const bytes = encodeFrames([{ event: 'custom', data: { a: [1, 'x'] }, id: 7 }]);
    expect(bytes.toString()).toBe('event: custom\nid: 7\ndata: {"a":[1,"x"]}\n\n');
  });

  test('comments and retry hints alone are no events', () => {
    const parsed = parse(encodeFrames([{ comment: 'ok' }, { comment: '' }, { comment: 'bye', retry: 1000 }]));
    expect(parsed).toEqual({ events: [], comments: ['ok', '', 'bye'], retries: [1000], errors: [] });
  });

  test('any data comes back as it was, any name and id in one field, whatever they hold', () => {
    const data = fc.anything({
      values: [nasty, fc.integer(), fc.boolean(), fc.constant(null)],
      key: nasty,
      maxDepth: 3,
    });
    const json = data.map((value) => JSON.parse(JSON.stringify(value) ?? 'null') as unknown);
    fc.assert(
      fc.property(
        fc.array(fc.record({ event: nasty, id: nasty, data: json }), { minLength: 1, maxLength: 4 }),
        fc.nat(),
        (frames, cut) => {
          const bytes = encodeFrames(frames);
          const { events, errors } = parse(bytes, cut % (bytes.length + 1));
          expect(errors).toEqual([]);
          expect(events.map((event) => JSON.parse(event.data))).toEqual(frames.map((frame) => frame.data));
          for (const [index, frame] of frames.entries()) {
            expect(events[index]?.event ?? '').toBe(inOneField(frame.event));
            expect(events[index]?.id ?? '').toBe(inOneField(frame.id));
          }
        },
      ),
      { numRuns: 500 },
    );
  });

  test('nothing in a frame adds a line for a client that splits by Unicode line ends', () => {
    fc.assert(
      fc.property(nasty, nasty, nasty, nasty, (event, id, comment, text) => {
        const lines = encodeFrames([{ event, id, comment, data: { [text]: text } }])
          .toString()
          .split(/\r\n|[\n\r\v\f\u0085\u2028\u2029]/u);
        expect(lines.map((line) => line.split(':')[0])).toEqual(['', 'event', 'id', 'data', '', '']);
      }),
      { numRuns: 300 },
    );
  });

  test('line separators in data are escaped on the wire and unchanged after parsing', () => {
    const text = 'a\u2028b\u2029c\u0085d\r\ne';
    const bytes = encodeFrames([{ data: text }]);
    expect(bytes.toString()).toBe('data: "a\\u2028b\\u2029c\\u0085d\\r\\ne"\n\n');
    expect(JSON.parse(parse(bytes).events[0]?.data ?? '')).toBe(text);
  });

  test('what is no frame is a programming error', () => {
    const wrong: SseFrame[] = [{ retry: 1.5 }, { retry: -1 }, { retry: Number.NaN }, { data: () => 1 }];
    for (const frame of wrong) expect(() => encodeFrames([frame])).toThrow(TypeError);
  });
});
