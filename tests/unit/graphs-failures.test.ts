import { GraphRecursionError, InvalidUpdateError } from '@langchain/langgraph';
import { describe, expect, test } from 'vitest';
import { classify } from '#src/graphs/failures.ts';
import { GraphLoadError } from '#src/graphs/load.ts';
import { ModelStalledError } from '#src/graphs/model-fetch.ts';

const withStatus = (status: number, fields: object = {}) => Object.assign(new Error('x'), { status, ...fields });
const withCode = (code: string) => Object.assign(new Error('x'), { code });
const because = (cause: unknown) => new Error('wrapped', { cause });
const ofModel = () => true;
const notOfModel = () => false;

describe('classify', () => {
  test.each([
    ['the recursion limit', new GraphRecursionError('x'), 'RECURSION_LIMIT'],
    ['a graph that cannot be made', new GraphLoadError('g', 'x'), 'GRAPH_UNAVAILABLE'],
    ['an invalid update', new InvalidUpdateError('x'), 'GRAPH_ERROR'],
    ['a programming error', new TypeError('x is not a function'), 'GRAPH_ERROR'],
    ['anything thrown', 'text', 'GRAPH_ERROR'],
    ['nothing', undefined, 'GRAPH_ERROR'],
    ['a silent model, wrapped', because(new ModelStalledError('x')), 'MODEL_TIMEOUT'],
    ['words that sound like more', new Error('429 rate limit ECONNREFUSED timeout 401'), 'GRAPH_ERROR'],
  ])('%s', (_name, error, code) => {
    expect(classify(error)).toEqual({ code, transient: false });
    expect(classify(error, notOfModel).code).toBe(code);
  });

  test.each([
    ['a connection refused, deep inside', because(because(withCode('ECONNREFUSED'))), 'MODEL_UNAVAILABLE', true],
    ['a connection reset', withCode('ECONNRESET'), 'MODEL_UNAVAILABLE', true],
    ['a timeout of the network', withCode('ETIMEDOUT'), 'MODEL_TIMEOUT', false],
    ['500', withStatus(500), 'MODEL_UNAVAILABLE', true],
    ['429', withStatus(429), 'MODEL_RATE_LIMITED', true],
    ['422', withStatus(422), 'MODEL_REJECTED', false],
  ] as const)('an upstream that may be a model: %s', (_name, error, code, transient) => {
    expect(classify(error)).toEqual({ code, transient });
    expect(classify(error, ofModel)).toEqual({ code, transient });
    expect(classify(error, notOfModel)).toEqual({ code: 'GRAPH_ERROR', transient });
  });

  test('a failed call without a status is the model’s, unless its own code is wrong', () => {
    expect(classify(new Error('Received empty response'), ofModel)).toEqual({
      code: 'MODEL_UNAVAILABLE',
      transient: false,
    });
    expect(classify(new SyntaxError('no JSON'), ofModel)).toEqual({ code: 'MODEL_UNAVAILABLE', transient: true });
    expect(classify(new SyntaxError('no JSON'), notOfModel)).toEqual({ code: 'GRAPH_ERROR', transient: false });
    expect(classify(new TypeError('x'), ofModel)).toEqual({ code: 'GRAPH_ERROR', transient: false });
  });

  test('of several nodes that failed at once, the one that cannot pass decides', () => {
    const both = new AggregateError([withStatus(503), new TypeError('x')]);
    expect(classify(both)).toEqual({ code: 'GRAPH_ERROR', transient: false });
    expect(classify(new AggregateError([withStatus(503), withStatus(429)]))).toEqual({
      code: 'MODEL_UNAVAILABLE',
      transient: true,
    });
  });

  test('a connection that failed on every address is one fault', () => {
    const error = Object.assign(new AggregateError([withCode('ECONNREFUSED')]), { code: 'ECONNREFUSED' });
    expect(classify(because(error))).toEqual({ code: 'MODEL_UNAVAILABLE', transient: true });
    expect(classify(error)).toEqual({ code: 'MODEL_UNAVAILABLE', transient: true });
  });

  test('a chain of causes that bites its tail ends', () => {
    const error = new Error('x') as Error & { cause: unknown };
    error.cause = error;
    expect(classify(error).code).toBe('GRAPH_ERROR');
  });
});
