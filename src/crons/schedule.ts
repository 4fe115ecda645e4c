/** When a schedule fires. Pure: the times it is given are Postgres', and no clock is looked at here. */
import { Cron as Pattern } from 'croner';

/** What of a cron says when it fires. */
export interface Schedule {
  schedule: string;
  timezone: string | null;
  end_time: string | null;
}

/** Five fields, or six with seconds first, or a name. Croner would also take a single date, and fields for years. */
const FORM = /^(?:@[a-z]+|\S+(?: \S+){4,5})$/i;

/**
 * Daylight saving: hours and minutes that are named (`30 2 * * *`, `0,30 2 * * *`) fire once a day, also on a day that does
 * not have them (then at the first moment after) or has them twice (then the first time). Those with a `*` or a step
 * fire whenever the clock on the wall says so.
 * @throws what croner throws
 */
function patternOf({ schedule, timezone }: Pick<Schedule, 'schedule' | 'timezone'>): Pattern {
  const text = schedule.trim().replace(/\s+/g, ' ');
  if (!FORM.test(text)) throw new TypeError('not the form of a schedule');
  return new Pattern(text, {
    paused: true,
    mode: '5-or-6-parts',
    timezone: timezone ?? 'UTC',
    fixedTimeRule: 'no-wildcard',
  });
}

export function isSchedule(schedule: string): boolean {
  try {
    patternOf({ schedule, timezone: null });
    return true;
  } catch {
    return false;
  }
}

/** Whether it is the name of a time zone, such as Europe/Berlin. */
export function isTimezone(timezone: string): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone: timezone });
    return true;
  } catch {
    return false;
  }
}

/** The first slot after `after`; null when none comes, or none before the end. @throws when it is no schedule */
export function nextSlot(schedule: Schedule, after: Date): Date | null {
  const next = patternOf(schedule).nextRun(after);
  return next === null || (schedule.end_time !== null && next > new Date(schedule.end_time)) ? null : next;
}

/**
 * Which slot is fired when `due` is the first that was not, and it is `now`: the latest that has come. Those between are
 * skipped: whoever was away for a day wants one report, not a hundred. @throws when it is no schedule
 */
export function latestSlot(schedule: Schedule, due: Date, now: Date): Date {
  const end = schedule.end_time === null ? now : new Date(Math.min(now.getTime(), Date.parse(schedule.end_time)));
  // Croner looks for slots before its reference: a slot exactly then counts too.
  const [latest] = patternOf(schedule).previousRuns(1, new Date(end.getTime() + 1));
  return latest === undefined || latest < due || latest > end ? due : latest;
}
