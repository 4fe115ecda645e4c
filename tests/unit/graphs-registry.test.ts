import { fileURLToPath } from 'node:url';
import { HumanMessage } from '@langchain/core/messages';
import { MemorySaver } from '@langchain/langgraph';
import { describe, expect, test } from 'vitest';
import type { GraphUse } from '#src/graphs/graph.ts';
import { GraphLoadError } from '#src/graphs/load.ts';
import { createGraphRegistry } from '#src/graphs/registry.ts';
import { drive, instantiate, modelConfig, storedMessages } from '#tests/support/graphs/drive.ts';
import { withOwnSaver } from '#tests/support/graphs/plain.ts';

const fileOf = (name: string) => fileURLToPath(new URL(`../support/graphs/${name}`, import.meta.url));
const entry = (exportName: string, name = 'plain.ts') => ({
  file: fileOf(name),
  exportName,
  context: 'checkpoint' as const,
});
const registryOf = (graphs: Record<string, ReturnType<typeof entry>>) =>
  createGraphRegistry({ graphs, model: modelConfig(null) });
const input = { messages: [new HumanMessage('hi')] };

describe('what config.yaml may name', () => {
  test.each([
    ['compiled', 'compiled: hi'],
    ['uncompiled', 'uncompiled: hi'],
    ['withOwnSaver', 'own: hi'],
    ['promised', 'promised: hi'],
    ['agent', 'agent: hi'],
    ['factory', 'hello: hi'],
    ['asyncFactory', 'hello: hi'],
  ])('%s', async (exportName, answer) => {
    const registry = await registryOf({ it: entry(exportName) });
    const graph = await instantiate(registry, 'it', { greeting: 'hello' });
    const run = await drive(graph, input);
    expect(run.error).toBeUndefined();
    expect(run.translator.answer()?.content).toBe(answer);
    expect((await storedMessages(graph)).at(-1)?.content).toBe(answer);
  });

  test.each<[GraphUse, unknown]>([
    [{ access: 'threads.create_run', context: { tenant: 'a' } }, { context: { tenant: 'a' } }],
    [{ access: 'assistants.read' }, null],
    [{ access: 'threads.read' }, null],
    [{ access: 'threads.update' }, null],
  ])('a factory is told what its graph is for: %j', async (use, executionRuntime) => {
    const registry = await registryOf({ it: entry('tellingFactory') });
    const run = await drive(await instantiate(registry, 'it', {}, use), input);
    expect(run.translator.answer()?.content).toBe(
      `${JSON.stringify({ accessContext: use.access, executionRuntime })} hi`,
    );
  });

  test('plain JavaScript', async () => {
    const registry = await registryOf({ it: entry('graph', 'javascript.js') });
    const run = await drive(await instantiate(registry, 'it'), input);
    expect(run.translator.answer()?.content).toBe('js: hi');
  });

  test('ids keep the order of the configuration; context is per graph', async () => {
    const registry = await createGraphRegistry({
      graphs: { z: entry('compiled'), a: { ...entry('factory'), context: 'transcript' } },
      model: modelConfig(null),
    });
    expect(registry.ids()).toEqual(['z', 'a']);
    expect([registry.contextOf('z'), registry.contextOf('a')]).toEqual(['checkpoint', 'transcript']);
    expect([registry.has('a'), registry.has('toString')]).toEqual([true, false]);
  });
});

describe('instances', () => {
  test('of a shared compiled graph do not touch it, and run side by side on their own savers', async () => {
    const before = { saver: withOwnSaver.checkpointer, channels: { ...withOwnSaver.channels } };
    const registry = await registryOf({ it: entry('withOwnSaver') });
    const savers = [new MemorySaver(), new MemorySaver()];
    const graphs = await Promise.all(
      savers.map((saver) => registry.instantiate('it', saver, { configurable: {}, access: 'threads.read' })),
    );
    await Promise.all(graphs.map((graph, index) => drive(graph, { messages: [new HumanMessage(`run ${index}`)] })));

    expect(withOwnSaver.checkpointer).toBe(before.saver);
    expect(withOwnSaver.channels).toEqual(before.channels);
    for (const [key, channel] of Object.entries(before.channels))
      expect(withOwnSaver.channels[key as never]).toBe(channel);
    const stored = await Promise.all(graphs.map((graph) => storedMessages(graph)));
    expect(stored.map((messages) => messages.map((message) => message.content))).toEqual([
      ['run 0', 'own: run 0'],
      ['run 1', 'own: run 1'],
    ]);
    const own = await withOwnSaver.getState({ configurable: { thread_id: 'thread' } });
    expect(own.values).toEqual({});
  });
});

describe('what stops the start', () => {
  test.each([
    ['a missing module', entry('graph', 'no-such-file.ts'), /could not be loaded/],
    ['a module that throws', entry('graph', 'broken-module.ts'), /could not be loaded/],
    ['a missing export', entry('noSuchExport'), /has no export "noSuchExport"/],
    ['something else', entry('notAGraph'), /neither a graph nor a function/],
    ['a rejected promise', entry('rejected'), /was rejected/],
    ['a graph that does not compile', entry('doesNotCompile'), /does not compile/],
  ])('%s', async (_name, bad, problem) => {
    const error = await registryOf({ good: entry('compiled'), bad }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(GraphLoadError);
    const { message, graphId } = error as GraphLoadError;
    expect(message).toMatch(/^graph "bad": /);
    expect(message).toMatch(problem);
    expect(message).not.toContain('secret');
    expect(graphId).toBe('bad');
  });

  test('keeps the cause for the log', async () => {
    const error = await registryOf({ bad: entry('rejected') }).catch((thrown: unknown) => thrown);
    expect((error as GraphLoadError).cause).toMatchObject({ message: 'postgres://user:secret@db' });
  });

  test.each([
    ['failingFactory', 'graph "it": its factory failed'],
    ['emptyFactory', 'graph "it": its factory did not return a graph'],
  ])('a factory only fails its run: %s', async (exportName, message) => {
    const registry = await registryOf({ it: entry(exportName) });
    await expect(instantiate(registry, 'it')).rejects.toThrow(
      new GraphLoadError('it', message.slice('graph "it": '.length)),
    );
  });
});
