import { describe, expect, test } from 'vitest';
import { renderRefusal } from '#src/dialects/rest/errors.ts';
import { REFUSAL_CODES, type RefusalCode, RunledgerError } from '#src/errors.ts';
import { toRefusal } from '#src/http/errors.ts';

const request = { id: 'req-1', params: {} };

const STATUS: Record<RefusalCode, number> = {
  INVALID_REQUEST: 422,
  INVALID_CHARACTER: 422,
  INVALID_CURSOR: 400,
  UNAUTHENTICATED: 401,
  FORBIDDEN: 403,
  NOT_FOUND: 404,
  THREAD_NOT_FOUND: 404,
  RUN_NOT_FOUND: 404,
  GRAPH_NOT_FOUND: 404,
  ASSISTANT_NOT_FOUND: 404,
  ASSISTANT_VERSION_NOT_FOUND: 404,
  CRON_NOT_FOUND: 404,
  ASSISTANT_EXISTS: 409,
  THREAD_EXISTS: 409,
  NOT_IMPLEMENTED: 501,
  DELIVERY_NOT_FOUND: 404,
  INTERRUPT_NOT_FOUND: 404,
  INTERRUPT_ANSWERED: 409,
  INTERRUPT_AMBIGUOUS: 409,
  RUN_IN_PROGRESS: 409,
  TURN_WAITING_APPROVAL: 409,
  IDEMPOTENCY_KEY_REUSED: 409,
  NOT_PREPARED: 409,
  NOT_RERUNNABLE: 409,
  STREAM_EXPIRED: 410,
  PAYLOAD_TOO_LARGE: 413,
  UNAVAILABLE: 503,
  INTERNAL: 500,
};

describe('renderRefusal', () => {
  test.each(REFUSAL_CODES)('%s has its status and the common body', (code) => {
    const form = renderRefusal(new RunledgerError(code, 'Because.'), request);
    expect(form.status).toBe(STATUS[code]);
    expect(form.body).toMatchObject({ code, message: 'Because.', request_id: 'req-1' });
    expect(form.body).not.toHaveProperty('path');
  });

  test('details are shown only where the code says so, and the cause never', () => {
    const details = { run_id: 'r', status: 'failed', interrupt_ids: ['i'], secret: 'hunter2' };
    for (const code of REFUSAL_CODES) {
      const cause = new Error('hunter2');
      const form = renderRefusal(new RunledgerError(code, 'Because.', { path: 'a.b', details, cause }), request);
      expect(JSON.stringify(form)).not.toContain('hunter2');
      expect(form.body).toMatchObject({ path: 'a.b' });
    }
  });

  test('a run in the way is named, with the place of its stream', () => {
    const error = new RunledgerError('RUN_IN_PROGRESS', 'Wait.', { details: { run_id: 'r' } });
    const form = renderRefusal(error, { id: 'q', params: { id: 't' } });
    expect(form.body).toMatchObject({ run_id: 'r' });
    expect(form.headers).toEqual({ location: '/api/v1/threads/t/messages/stream?run_id=r' });
    const known = new RunledgerError('RUN_IN_PROGRESS', 'Wait.', { details: { run_id: 'r', thread_id: 'u' } });
    expect(renderRefusal(known, request).headers).toEqual({ location: '/api/v1/threads/u/messages/stream?run_id=r' });
    expect(renderRefusal(new RunledgerError('RUN_IN_PROGRESS', 'Wait.'), request).headers).toEqual({});
  });

  test('an expired stream tells the end of its run; an open question its id; a busy server when to come back', () => {
    const expired = new RunledgerError('STREAM_EXPIRED', 'Gone.', { details: { run_id: 'r', status: 'succeeded' } });
    expect(renderRefusal(expired, request).body).toMatchObject({ run: { id: 'r', status: 'succeeded' } });
    const waiting = new RunledgerError('TURN_WAITING_APPROVAL', 'Answer.', { details: { interrupt_ids: ['i'] } });
    expect(renderRefusal(waiting, request).body).toMatchObject({ interrupt_ids: ['i'] });
    expect(renderRefusal(new RunledgerError('UNAVAILABLE', 'Later.'), request).headers).toEqual({ 'retry-after': '1' });
  });
});

describe('toRefusal', () => {
  test('knows refusals, and takes everything else for INTERNAL without its words', () => {
    const known = new RunledgerError('RUN_NOT_FOUND', 'There is no such run.');
    expect(toRefusal(known)).toBe(known);
    const thrown = [
      new Error('secret'),
      'secret',
      null,
      { code: 'FST_X', message: 'secret' },
      new RunledgerError('INTERNAL', 'secret'),
    ];
    for (const error of thrown) {
      const refusal = toRefusal(error);
      expect(refusal).toMatchObject({ code: 'INTERNAL', message: 'The server failed to handle this request.' });
    }
    expect(toRefusal(thrown[0]).cause).toBe(thrown[0]);
  });
});
