import { describe, expect, test } from 'vitest';
import { systemAssistantId } from '#src/assistants/service.ts';
import { renderRefusal } from '#src/dialects/langgraph/errors.ts';
import { REFUSAL_CODES, RunledgerError } from '#src/errors.ts';

const request = { id: 'q', params: {} };

describe('refusals', () => {
  test.each(REFUSAL_CODES)('%s is a text with a status, and says nothing of its cause', (code) => {
    const error = new RunledgerError(code, 'Because.', { cause: new Error('hunter2'), details: { run_id: 'secret' } });
    const form = renderRefusal(error, request);
    expect(form.status).toBeGreaterThanOrEqual(400);
    expect(typeof form.body).toBe('string');
    expect(String(form.body)).not.toMatch(/hunter2|secret/);
  });

  test('what does not fit its schema is told as zod tells it', () => {
    const issues = [{ code: 'custom', path: ['a'], message: 'no' }];
    const form = renderRefusal(new RunledgerError('INVALID_REQUEST', 'x', { details: { issues } }), request);
    expect(form).toMatchObject({ status: 400, body: { success: false, error: { issues, name: 'ZodError' } } });
  });

  test.each([
    ['THREAD_NOT_FOUND', { thread_id: 'T' }, 404, 'Thread with ID T not found'],
    ['RUN_NOT_FOUND', {}, 404, 'Run not found'],
    ['RUN_IN_PROGRESS', {}, 422, expect.stringMatching(/^Thread is already running a task\./)],
    ['RUN_IN_PROGRESS', { form: { status: 409, text: 'Thread is busy' } }, 409, 'Thread is busy'],
  ] as const)('%s %o', (code, details, status, body) => {
    expect(renderRefusal(new RunledgerError(code, 'x', { details: { ...details } }), request)).toMatchObject({
      status,
      body,
    });
  });
});

test('the assistant of a graph has the same id on every server', () => {
  expect(systemAssistantId('agent')).toBe('fe096781-5601-53d2-b2f6-0d3403f7e9ca');
});
