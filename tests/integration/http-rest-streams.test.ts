/**
 * The REST dialect's streams over real sockets. The core is given as a dependency and answers from a script: what is tested
 * here is what goes over the wire and what is asked of the core, not the core.
 */
import { describe, expect, test } from 'vitest';
import type { Projector } from '#src/dialects/dialect.ts';
import { createRunStream } from '#src/dialects/stream.ts';
import { watchClient } from '#src/http/client.ts';
import type { Followed, RunService } from '#src/runs/service.ts';
import { openSse } from '#tests/support/sse.ts';
import { until } from '#tests/support/until.ts';
import { admitted, ended, follow, RUN, refuse, run, STORY, STREAM, seen, start, THREAD } from './http-rest-rig.ts';
import { createFeed, getRequest, rawSocket, startRig } from './http-rig.ts';

describe('following', () => {
  test('continues after the cursor; the query wins over the header', async () => {
    const { open } = await start({ runs: { find: async () => run(), follow } });
    const cases: [string, Record<string, string>, string[]][] = [
      ['', { 'last-event-id': '1' }, ['2', '3']],
      ['&last_event_id=2', { 'last-event-id': '0' }, ['3']],
      ['&last_event_id=', { 'last-event-id': '' }, ['0', '1', '2', '3']],
      ['&last_event_id=999999999', {}, []],
    ];
    for (const [query, headers, ids] of cases) {
      const stream = await open(`${STREAM}${query}`, { headers });
      expect(await stream.closed).toEqual({ how: 'ended' });
      expect(stream.frames.map((frame) => frame.id)).toEqual(ids);
    }
  });

  test('names the latest run when none is asked for', async () => {
    const { open, calls } = await start({ runs: { find: async () => run(), follow } });
    const stream = await open(`/api/v1/threads/${THREAD}/messages/stream`);
    await stream.closed;
    expect(calls.find).toEqual([['ada', THREAD, undefined]]);
    expect(stream.headers.get('content-location')).toBe(STREAM);
  });

  test.each([['abc'], ['-5'], ['1-'], ['18446744073709551616-0'], ['x'.repeat(10_000)], ['%F0%9F%98%80']])(
    'cursor case %# is 400 before the core is asked',
    async (cursor) => {
      const { ask, calls } = await start();
      const refused = { status: 400, body: { code: 'INVALID_CURSOR' } };
      expect(await ask('GET', `${STREAM}&last_event_id=${cursor}`)).toMatchObject(refused);
      expect(await ask('GET', STREAM, undefined, { 'last-event-id': cursor })).toMatchObject(refused);
      expect(calls).toEqual({});
    },
  );

  test('410 with the run’s end when its events are gone', async () => {
    const openStream = refuse('STREAM_EXPIRED', { run_id: RUN, status: 'failed' });
    const { ask } = await start({ runs: { find: async () => run({ status: 'failed' }), openStream } });
    expect(await ask('GET', STREAM)).toMatchObject({
      status: 410,
      body: { code: 'STREAM_EXPIRED', run: { id: RUN, status: 'failed' } },
    });
  });

  test('a gap, and a message whose beginning is lost, are said once each', async () => {
    const delta = (cursor: number, m: number): Followed =>
      seen(cursor, { type: 'message.delta', m, kind: 'text', text: 'x' });
    const items: Followed[] = [{ kind: 'resync' }, delta(50, 10), delta(51, 10), delta(52, 20), seen(53, ended)];
    const { open } = await start({
      runs: {
        find: async () => run(),
        async *follow() {
          yield* items;
        },
      },
    });
    const stream = await open(STREAM);
    await stream.closed;
    const opening = { run_id: RUN, thread_id: THREAD, turn_id: 'turn', takeover: 0 };
    expect(stream.frames.map(({ event, id, data }) => [event, id, data])).toEqual([
      // The log lost its own beginning: the stream has one all the same.
      ['metadata', undefined, JSON.stringify(opening)],
      ['resync_required', undefined, '{}'],
      ['resync_required', undefined, '{}'],
      ['resync_required', undefined, '{}'],
      ['run_end', '53', '{"status":"succeeded","usage":null}'],
    ]);
    const rest = await open(`${STREAM}&last_event_id=49`);
    await rest.closed;
    expect(rest.frames[0]?.event).toBe('resync_required');
  });

  test('has no HEAD, which would follow a run without sending it', async () => {
    const { ask, calls } = await start();
    expect((await ask('HEAD', STREAM)).status).toBe(404);
    expect(calls).toEqual({});
  });

  test('renders an event once for all viewers of the process', async () => {
    let projected = 0;
    const projector: Projector = {
      resync: { event: 'resync' },
      opening: () => [],
      project: ({ cursor }) => {
        projected += 1;
        return [{ id: cursor, data: cursor }];
      },
    };
    const rig = await startRig({}, ({ app, sse, logger }) => {
      const openStream = createRunStream({
        runs: { openStream: async () => undefined, follow, disconnected: async () => undefined },
        sse,
        projector,
        logger,
      });
      app.get('/stream', async (_request, reply) =>
        openStream({ reply, client: watchClient(reply), run: run(), after: -1, startedTheRun: false }),
      );
    });
    const streams = await Promise.all(Array.from({ length: 20 }, () => openSse(`${rig.url}/stream`)));
    for (const stream of streams) {
      await stream.closed;
      expect(stream.frames.map((frame) => frame.id)).toEqual(['0', '1', '2', '3']);
    }
    expect(projected).toBe(STORY.length);
  });
});

describe('a client that leaves', () => {
  function core(replayed: boolean) {
    const feed = createFeed<Followed>();
    const disconnected: string[] = [];
    feed.push(...STORY.slice(0, 2));
    const runs: Partial<RunService> = {
      send: async () => ({ ...admitted, replayed }),
      find: async () => run(),
      follow: (_run, _after, signal) => feed.items(signal),
      disconnected: async ({ id }) => {
        disconnected.push(id);
      },
    };
    return { feed, disconnected, runs };
  }

  test('the response that created the run: the core is told once', async () => {
    const { feed, disconnected, runs } = core(false);
    const { open } = await start({ runs });
    const stream = await open('/api/v1/threads/messages', { body: { content: 'hi' } });
    await stream.waitFor((frame) => frame.id === '1');
    stream.close();
    await until(() => disconnected.length > 0 && feed.ended === 1, { message: 'the core to be told' });
    expect(disconnected).toEqual([RUN]);
  });

  test('any other stream of the run, or one that ended: it is not told', async () => {
    const viewer = core(false);
    const first = await start({ runs: viewer.runs });
    const watching = await first.open(STREAM);
    await watching.waitFor((frame) => frame.id === '1');
    watching.close();
    await until(() => viewer.feed.ended === 1 && first.sse.open === 0, { message: 'the viewer to be gone' });

    const again = core(true);
    const second = await start({ runs: again.runs });
    const attached = await second.open('/api/v1/threads/messages', { body: { content: 'hi' } });
    await attached.waitFor((frame) => frame.id === '1');
    attached.close();
    await until(() => again.feed.ended === 1 && second.sse.open === 0, { message: 'the repeated request to be gone' });

    const whole = core(false);
    const third = await start({ runs: whole.runs });
    const creating = await third.open('/api/v1/threads/messages', { body: { content: 'hi' } });
    whole.feed.push(...STORY.slice(2));
    whole.feed.end();
    await creating.closed;
    await until(() => third.sse.open === 0, { message: 'the end' });
    expect([viewer.disconnected, again.disconnected, whole.disconnected]).toEqual([[], [], []]);
  });

  test('because the server closes: it is not told', async () => {
    const { disconnected, runs } = core(false);
    const { open, app } = await start({ runs });
    const stream = await open('/api/v1/threads/messages', { body: { content: 'hi' } });
    await stream.waitFor((frame) => frame.id === '1');
    await app.close();
    await stream.closed;
    expect(disconnected).toEqual([]);
  });

  test.each([['text/event-stream'], ['application/json']])(
    'before its run was admitted (%s): the core is told',
    async (accept) => {
      const { disconnected, runs, feed } = core(false);
      const gate = Promise.withResolvers<void>();
      let asked = 0;
      const { port, url } = await start({
        runs: {
          ...runs,
          send: async () => {
            asked += 1;
            await gate.promise;
            return admitted;
          },
        },
      });
      const body = '{"content":"hi"}';
      const request = getRequest('/api/v1/threads/messages', [
        'X-Dev-User: ada',
        `Accept: ${accept}`,
        'Content-Type: application/json',
        `Content-Length: ${body.length}`,
      ]).replace('GET', 'POST');
      const socket = await rawSocket(port, request + body);
      await until(() => asked === 1, { message: 'the request' });
      socket.resetAndDestroy();
      // Another request, answered, proves that the server has seen what happened on the first connection.
      await fetch(`${url}/none`);
      gate.resolve();
      await until(() => disconnected.length > 0, { message: 'the core to be told' });
      expect(disconnected).toEqual([RUN]);
      expect(feed.started).toBe(0);
    },
  );
});
