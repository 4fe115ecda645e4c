/** When a schedule fires: time zones, the two nights a year, ends, and what was missed. */
import { describe, expect, test } from 'vitest';
import { isSchedule, isTimezone, latestSlot, nextSlot, type Schedule } from '#src/crons/schedule.ts';

const of = (schedule: string, timezone: string | null = null, end_time: string | null = null): Schedule => ({
  schedule,
  timezone,
  end_time,
});
/** The next slots after a time. */
function slots(schedule: Schedule, after: string, count: number): (string | null)[] {
  const found: (string | null)[] = [];
  let at = new Date(after);
  while (found.length < count) {
    const next = nextSlot(schedule, at);
    found.push(next?.toISOString() ?? null);
    if (next === null) break;
    at = next;
  }
  return found;
}

test('a schedule has five fields, six with seconds first, or a name', () => {
  for (const good of ['0 9 * * 1-5', '*/15 * * * *', '30 0 9 * * *', '@daily', '  0   9 * * *  ', '0 0 L * *']) {
    expect(isSchedule(good), good).toBe(true);
  }
  // A single date, a year, an event and what is no cron at all.
  for (const bad of ['2027-01-01T00:00:00', '0 0 0 1 1 * 2030', '@reboot', 'not a cron', '* * * *', '61 * * * *', '']) {
    expect(isSchedule(bad), bad).toBe(false);
  }
  expect([isTimezone('Europe/Berlin'), isTimezone('UTC'), isTimezone('Mars/Olympus')]).toEqual([true, true, false]);
});

describe('daylight saving', () => {
  // Berlin: on 2026-03-29 the clock goes from 02:00 to 03:00, on 2026-10-25 from 03:00 back to 02:00.
  test('a named time that the day does not have fires at the first moment after; one it has twice, the first time', () => {
    const daily = of('30 2 * * *', 'Europe/Berlin');
    expect(slots(daily, '2026-03-28T12:00:00Z', 2)).toEqual(['2026-03-29T01:00:00.000Z', '2026-03-30T00:30:00.000Z']);
    expect(slots(daily, '2026-10-24T12:00:00Z', 2)).toEqual(['2026-10-25T00:30:00.000Z', '2026-10-26T01:30:00.000Z']);
    const twice = of('15,45 2 * * *', 'Europe/Berlin');
    expect(slots(twice, '2026-10-24T12:00:00Z', 3)).toEqual([
      '2026-10-25T00:15:00.000Z',
      '2026-10-25T00:45:00.000Z',
      '2026-10-26T01:15:00.000Z',
    ]);
  });

  test('what fires every so often goes on doing so', () => {
    expect(slots(of('30 * * * *', 'Europe/Berlin'), '2026-10-25T00:00:00Z', 3)).toEqual([
      '2026-10-25T00:30:00.000Z',
      '2026-10-25T01:30:00.000Z',
      '2026-10-25T02:30:00.000Z',
    ]);
  });

  test('the hour on the wall stays', () => {
    expect(slots(of('0 9 * * 1-5', 'America/New_York'), '2026-03-06T12:00:00Z', 2)).toEqual([
      '2026-03-06T14:00:00.000Z',
      '2026-03-09T13:00:00.000Z',
    ]);
  });
});

test('without a time zone it is UTC; no slot comes after the end, one at the end does', () => {
  expect(slots(of('0 9 * * *', null, '2026-03-02T09:00:00.000Z'), '2026-03-01T00:00:00Z', 3)).toEqual([
    '2026-03-01T09:00:00.000Z',
    '2026-03-02T09:00:00.000Z',
    null,
  ]);
  expect(slots(of('0 0 31 2 *'), '2026-03-01T00:00:00Z', 1)).toEqual([null]);
});

test('of slots that were missed the latest is fired', () => {
  const hourly = of('0 * * * *');
  const latest = (schedule: Schedule, due: string, now: string): string =>
    latestSlot(schedule, new Date(due), new Date(now)).toISOString();
  expect(latest(hourly, '2026-03-01T01:00:00Z', '2026-03-01T07:20:00Z')).toBe('2026-03-01T07:00:00.000Z');
  expect(latest(hourly, '2026-03-01T07:00:00Z', '2026-03-01T07:00:00Z')).toBe('2026-03-01T07:00:00.000Z');
  expect(latest(hourly, '2026-03-01T07:00:00Z', '2026-03-01T07:00:00.300Z')).toBe('2026-03-01T07:00:00.000Z');
  const ending = of('0 * * * *', null, '2026-03-01T03:30:00.000Z');
  expect(latest(ending, '2026-03-01T01:00:00Z', '2026-03-01T07:20:00Z')).toBe('2026-03-01T03:00:00.000Z');
  const twice = of('30 2 * * *', 'Europe/Berlin');
  expect(latest(twice, '2026-03-27T01:30:00Z', '2026-03-29T01:00:00.500Z')).toBe('2026-03-29T01:00:00.000Z');
});
