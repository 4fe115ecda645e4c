/** What every event log must do. Run over each implementation by event-log.test.ts. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BEFORE_START, cursorOf } from '#src/events/cursor.ts';
import type { EventLog, LogEntry } from '#src/events/log.ts';
import { until } from '#tests/support/until.ts';

export interface OpenedLog {
  log: EventLog;
  /** Another process' view of the same store; the same object where the store is in this process. */
  other: EventLog;
  close(): Promise<void>;
}

function entry(epoch: number, n: number, text = `text ${epoch}-${n}`): LogEntry {
  return { cursor: cursorOf(epoch, n), payload: JSON.stringify({ type: 'graph.part', text }) };
}

function entries(epoch: number, from: number, count: number): LogEntry[] {
  return Array.from({ length: count }, (_, index) => entry(epoch, from + index));
}

export function eventLogContract(name: string, open: () => Promise<OpenedLog>): void {
  describe(`${name} event log`, () => {
    let opened: OpenedLog;
    beforeAll(async () => {
      opened = await open();
    });
    afterAll(() => opened.close());

    const append = async (runId: string, batch: LogEntry[], log = opened.log) => {
      const [result] = await log.append([{ runId, entries: batch }]);
      return result;
    };
    const all = async (runId: string) => (await opened.other.read(runId, BEFORE_START, 10_000)).entries;

    test('keeps order and gives every reader the bytes that were appended', async () => {
      const runId = randomUUID();
      expect(await append(runId, entries(1, 0, 3))).toBe('appended');
      expect(await append(runId, entries(1, 3, 2))).toBe('appended');
      expect(await all(runId)).toEqual(entries(1, 0, 5));
    });

    test('reads after a cursor, exclusive, in pages', async () => {
      const runId = randomUUID();
      await append(runId, [...entries(1, 0, 10), ...entries(3, 0, 3)]);
      expect((await opened.log.read(runId, cursorOf(1, 7), 2)).entries).toEqual(entries(1, 8, 2));
      expect((await opened.log.read(runId, cursorOf(1, 9), 2)).entries).toEqual(entries(3, 0, 2));
      expect((await opened.log.read(runId, cursorOf(2, 500), 9)).entries).toEqual(entries(3, 0, 3));
      expect(await opened.log.read(runId, cursorOf(3, 2), 9)).toEqual({ exists: true, entries: [] });
      const pages: LogEntry[] = [];
      for (let after = BEFORE_START; ; ) {
        const page = await opened.log.read(runId, after, 4);
        pages.push(...page.entries);
        const last = page.entries.at(-1);
        if (last === undefined) break;
        after = last.cursor;
      }
      expect(pages).toEqual(await all(runId));
    });

    test('says that a run has no log', async () => {
      const runId = randomUUID();
      expect(await opened.log.read(runId, BEFORE_START, 10)).toEqual({ exists: false, entries: [] });
      expect(await opened.log.read(runId, cursorOf(1, 5), 10)).toEqual({ exists: false, entries: [] });
      expect(await opened.log.last(runId)).toBeNull();
      expect(await opened.log.readOne(runId, 0)).toBeNull();
    });

    test('gives one entry, and the last one', async () => {
      const runId = randomUUID();
      await append(runId, [...entries(1, 0, 3), ...entries(2, 0, 2)]);
      expect(await opened.log.readOne(runId, cursorOf(1, 1))).toEqual(entry(1, 1));
      expect(await opened.log.readOne(runId, cursorOf(1, 3))).toBeNull();
      expect(await opened.log.last(runId)).toEqual(entry(2, 1));
    });

    test('an older epoch is fenced by the first entry of a newer one, and leaves nothing', async () => {
      const runId = randomUUID();
      await append(runId, entries(1, 0, 3));
      expect(await append(runId, [entry(2, 0)], opened.other)).toBe('appended');
      expect(await append(runId, entries(1, 3, 2))).toBe('fenced');
      expect(await all(runId)).toEqual([...entries(1, 0, 3), entry(2, 0)]);
    });

    test('a batch that was fenced in its middle is fenced', async () => {
      const runId = randomUUID();
      await append(runId, [...entries(1, 0, 4), entry(2, 0)]);
      // 1-2 and 1-3 are there with the same bytes; 1-4 came too late.
      expect(await append(runId, entries(1, 2, 3))).toBe('fenced');
    });

    test('appending the same bytes again is done; other bytes under the same id are fenced', async () => {
      const runId = randomUUID();
      await append(runId, entries(1, 0, 3));
      expect(await append(runId, entries(1, 1, 2))).toBe('appended');
      expect(await append(runId, entries(1, 1, 4))).toBe('appended');
      expect(await all(runId)).toEqual(entries(1, 0, 5));
      expect(await append(runId, [entry(1, 4, 'other')])).toBe('fenced');
      expect(await append(runId, [entry(1, 4, 'other'), entry(1, 5)])).toBe('fenced');
      expect(await append(runId, [entry(1, 4)])).toBe('appended');
    });

    test('a hole is kept as a hole', async () => {
      const runId = randomUUID();
      await append(runId, [entry(1, 0), entry(1, 4)]);
      expect(await append(runId, entries(1, 3, 3))).toBe('appended');
      expect(await append(runId, [entry(1, 2)])).toBe('fenced');
      expect(await all(runId)).toEqual([entry(1, 0), entry(1, 4), entry(1, 5)]);
    });

    test('several runs in one append have a result each', async () => {
      const [a, b, c] = [randomUUID(), randomUUID(), randomUUID()];
      await append(b, [entry(5, 0)]);
      const results = await opened.log.append([
        { runId: a, entries: entries(1, 0, 50) },
        { runId: b, entries: entries(4, 0, 50) },
        { runId: c, entries: entries(7, 0, 50) },
      ]);
      expect(results).toEqual(['appended', 'fenced', 'appended']);
      expect(await all(a)).toEqual(entries(1, 0, 50));
      expect(await all(b)).toEqual([entry(5, 0)]);
      expect(await all(c)).toEqual(entries(7, 0, 50));
    });

    test('everything appended after a subscription is published, to each subscriber of the run only', async () => {
      const [runId, foreign] = [randomUUID(), randomUUID()];
      const [first, second]: LogEntry[][] = [[], []];
      await append(runId, [entry(1, 0)]);
      const endFirst = await opened.other.subscribe(runId, (seen) => first?.push(seen));
      const endSecond = await opened.other.subscribe(runId, (seen) => second?.push(seen));
      await append(runId, entries(1, 1, 3));
      await append(foreign, entries(1, 0, 3));
      await until(() => first?.length === 3 && second?.length === 3, { message: 'both subscribers to have all' });
      expect(first).toEqual(entries(1, 1, 3));
      expect(second).toEqual(entries(1, 1, 3));
      endFirst();
      await append(runId, [entry(1, 4)]);
      await until(() => second?.length === 4, { message: 'the other subscriber to go on' });
      expect(first).toHaveLength(3);
      endSecond();
    });

    test('a subscription can be ended and begun again', async () => {
      const runId = randomUUID();
      const seen: LogEntry[] = [];
      for (let n = 0; n < 5; n += 1) {
        const end = await opened.other.subscribe(runId, (live) => seen.push(live));
        await append(runId, [entry(1, n)]);
        await until(() => seen.length === n + 1, { message: `entry ${n}` });
        end();
      }
      expect(seen).toEqual(entries(1, 0, 5));
    });

    test('text that UTF-8 or a line cannot hold survives, stored and published', async () => {
      const runId = randomUUID();
      const text = 'lone \uD800 and \uDC00, pair \u{1F600}, NUL \u0000, lines \u2028\u2029\r\n, quote " and \\ { 中文';
      const seen: LogEntry[] = [];
      const end = await opened.other.subscribe(runId, (live) => seen.push(live));
      await append(runId, [entry(1, 0, text)]);
      await until(() => seen.length === 1, { message: 'the entry to be published' });
      end();
      for (const got of [seen[0], (await all(runId))[0]]) {
        expect(got).toEqual(entry(1, 0, text));
        expect(JSON.parse(got?.payload ?? '').text).toBe(text);
      }
    });

    test('long payloads, among short ones: the same bytes, in order, stored and published, idempotent', async () => {
      const runId = randomUUID();
      const long = 'a line of text, 中文, \u{1F600}\n'.repeat(50_000);
      const batch = [entry(1, 0), entry(1, 1, long), entry(1, 2), entry(1, 3, 'é'.repeat(40_000)), entry(1, 4)];
      const seen: LogEntry[] = [];
      const end = await opened.other.subscribe(runId, (live) => seen.push(live));
      expect(await append(runId, batch)).toBe('appended');
      await until(() => seen.length === 5, { message: 'all to be published' });
      end();
      expect(seen.map(({ cursor }) => cursor)).toEqual(batch.map(({ cursor }) => cursor));
      expect(seen).toEqual(batch);
      expect(await all(runId)).toEqual(batch);
      expect(await opened.other.readOne(runId, cursorOf(1, 1))).toEqual(batch[1]);
      expect(await append(runId, batch)).toBe('appended');
      expect(await append(runId, [entry(1, 1, `${long}!`)])).toBe('fenced');
    });

    test('expires after its time, not before, and can be removed', async () => {
      const [kept, expiring, removed] = [randomUUID(), randomUUID(), randomUUID()];
      for (const runId of [kept, expiring, removed]) await append(runId, entries(1, 0, 2));
      await opened.log.expireAfter(kept, 400 * 24 * 3600 * 1000);
      const sinceMs = performance.now();
      await opened.log.expireAfter(expiring, 1_000);
      await opened.log.remove(removed);
      expect(await opened.other.read(removed, BEFORE_START, 10)).toEqual({ exists: false, entries: [] });
      const before = await all(expiring);
      if (performance.now() - sinceMs < 900) expect(before).toHaveLength(2);
      await until(async () => !(await opened.other.read(expiring, BEFORE_START, 10)).exists, { message: 'expiry' });
      expect(performance.now() - sinceMs).toBeGreaterThan(900);
      expect(await all(kept)).toHaveLength(2);
      await opened.log.expireAfter(randomUUID(), 1000);
      await opened.log.remove(randomUUID());
    });

    test('answers a ping', async () => {
      await opened.log.ping();
    });
  });
}
