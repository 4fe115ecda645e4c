import { AIMessageChunk } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { runToolTask, storedAnswer, toolTasks } from '#src/graphs/tool-calls.ts';

const part = (index: number, fields: object) => ({ index, type: 'tool_call_chunk' as const, ...fields });
const answer = (...parts: ReturnType<typeof part>[]) =>
  storedAnswer(new AIMessageChunk({ id: 'm', content: 'text', tool_call_chunks: parts }));

describe('the answer as it is stored', () => {
  test('keeps whole calls, also those without arguments', () => {
    const stored = answer(
      part(0, { id: 'a', name: 't', args: '{"x":[1]}' }),
      part(1, { id: 'b', name: 't', args: '' }),
    );
    expect(stored.tool_calls).toMatchObject([
      { id: 'a', name: 't', args: { x: [1] } },
      { id: 'b', name: 't', args: {} },
    ]);
    expect(stored.invalid_tool_calls).toEqual([]);
    expect(toolTasks(stored).map((task) => task.problem)).toEqual([null, null]);
    expect([stored.id, stored.content, stored.type]).toEqual(['m', 'text', 'ai']);
  });

  test('every call of a provider that gives no ids gets one of its own', () => {
    const stored = answer(part(0, { name: 't', args: '{}' }), part(1, { name: 't', args: '{}' }));
    const ids = stored.tool_calls?.map((call) => call.id);
    expect(new Set(ids).size).toBe(2);
    expect(ids?.every((id) => typeof id === 'string' && id !== '')).toBe(true);
    expect(toolTasks(stored).map((task) => task.call.id)).toEqual(ids);
  });

  test('does not run what LangChain completed from half an argument', () => {
    const stored = answer(part(0, { id: 'a', name: 't', args: '{"to":"everyo' }));
    expect(stored.tool_calls).toMatchObject([{ id: 'a', args: {} }]);
    expect(stored.invalid_tool_calls).toMatchObject([{ id: 'a', args: '{"to":"everyo' }]);
    expect(toolTasks(stored)[0]?.problem).toMatch(/not valid JSON/);
  });
});

describe('running a call', () => {
  const call = { id: 'c', name: 't', args: {}, type: 'tool_call' as const };
  const toolThat = (run: (signal?: AbortSignal) => Promise<string>) =>
    tool((_args: object, config) => run(config.signal), { name: 't', description: 't', schema: z.object({}) });

  test('what a tool throws is its result', async () => {
    const failing = toolThat(() => Promise.reject(new Error('no such city')));
    const result = await runToolTask([failing], { call, problem: null }, {});
    expect(result).toMatchObject({ tool_call_id: 'c', name: 't', status: 'error', content: 'no such city' });
  });

  test('an abort reaches the tool and is no result', async () => {
    const controller = new AbortController();
    const waiting = toolThat(
      (signal) =>
        new Promise((_resolve, reject) => {
          signal?.addEventListener('abort', () => reject(new Error('cleaned up')));
          setImmediate(() => controller.abort(new Error('stop')));
        }),
    );
    const running = runToolTask([waiting], { call, problem: null }, { signal: controller.signal });
    await expect(running).rejects.toThrow('stop');
  });
});
