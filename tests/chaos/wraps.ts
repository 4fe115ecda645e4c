/** Where the preload stands between the program and its clients. Nothing changes while no fault is armed for a point. */
import type { EventEmitter } from 'node:events';
import type http from 'node:http';
import type { Socket } from 'node:net';
import type { Armory, Hit } from './armory.ts';
import { FAULT_POINTS, type FaultPoint, type Recognised } from './fault-points.ts';

const POINTS = Object.entries(FAULT_POINTS) as [FaultPoint, Recognised][];

/** What is used of pg's Client, whose types hide it. */
interface PgClient {
  connection: { stream: Socket };
  connectionParameters: { application_name?: string };
  chaosSent?: string[];
}
type Method = (this: PgClient, ...args: unknown[]) => unknown;
interface PgClientClass {
  prototype: object;
}

interface Statement {
  name?: string;
  text?: string;
}

/** Every connection says whose it is, so that the audit in the database knows which process wrote. */
export function wrapPostgres(Client: PgClientClass, armory: Armory): void {
  const prototype = Client.prototype as { query: Method; connect: Method };
  const { query, connect } = prototype;
  prototype.connect = function (...args) {
    const { connectionParameters: parameters } = this;
    if (parameters.application_name?.includes('pid=') === false) {
      parameters.application_name += ` pid=${process.pid}`;
    }
    return connect.apply(this, args);
  };
  prototype.query = function (...args) {
    const statement = statementOf(args[0]);
    const point = pointOf(this, statement);
    if (point === null) return query.apply(this, args);
    const hit = armory.hit(point, 'before');
    const wait = hit?.act() ?? null;
    const go = (): unknown => {
      if (armory.waitsFor(point, 'after')) holdReply(this, armory, point);
      return query.apply(this, args);
    };
    if (wait === null) return go();
    const gone = wait.then(go);
    // With a callback the program looks at no result.
    return typeof args.at(-1) === 'function' ? undefined : gone;
  };
}

function statementOf(config: unknown): Statement {
  if (typeof config === 'string') return { text: config };
  return typeof config === 'object' && config !== null ? (config as Statement) : {};
}

/** The point this statement is, and remembers what the client's transaction has sent so far. */
function pointOf(client: PgClient, { name, text = '' }: Statement): FaultPoint | null {
  const sent = client.chaosSent ?? [];
  client.chaosSent = sent;
  if (text === 'begin') sent.length = 0;
  else if (name !== undefined) sent.push(name);
  const found = POINTS.find(([, known]) => {
    if (known.via !== 'postgres') return false;
    if ('statement' in known) return known.statement === name;
    if ('text' in known) return text.includes(known.text);
    return text === 'commit' && sent.includes(known.commitOf);
  });
  if (text === 'commit' || text === 'rollback') sent.length = 0;
  return found?.[0] ?? null;
}

/** Keeps what the server answers to the next statement until all of it is there; then the fault acts, then it goes on. */
function holdReply(client: PgClient, armory: Armory, point: FaultPoint): void {
  const { stream } = client.connection;
  const emit: EventEmitter['emit'] = stream.emit;
  const held: Buffer[] = [];
  let acting = false;
  const letGo = (): void => {
    stream.emit = emit as Socket['emit'];
    for (const chunk of held) emit.call(stream, 'data', chunk);
  };
  stream.emit = ((event: string, ...args: unknown[]) => {
    if (event !== 'data') return emit.call(stream, event, ...args);
    held.push(args[0] as Buffer);
    const reply = Buffer.concat(held);
    if (acting || !isComplete(reply)) return true;
    const hit = tookNothing(reply) ? null : armory.hit(point, 'after');
    if (hit === null) {
      letGo();
      return true;
    }
    acting = true;
    const wait = hit.act();
    if (hit.action === 'lose-reply') stream.destroy();
    else if (wait === null) letGo();
    else void wait.then(letGo);
    return true;
  }) as Socket['emit'];
}

/** Ends with ReadyForQuery. */
function isComplete(reply: Buffer): boolean {
  return reply.length >= 6 && reply.readUInt8(reply.length - 6) === 0x5a && reply.readUInt32BE(reply.length - 5) === 5;
}

/** A claim or a take of nothing is no hit. */
function tookNothing(reply: Buffer): boolean {
  return reply.includes('UPDATE 0\0') || reply.includes('SELECT 0\0');
}

interface RedisCommand {
  name: string;
  args: unknown[];
  resolve(value: unknown): void;
  reject(error: Error): void;
}
interface RedisClientClass {
  prototype: object;
}
interface RedisClient {
  stream: Socket;
}

/** Acts at commands one by one; in a pipeline `before` is before any of it has left. */
export function wrapRedis(Client: RedisClientClass, armory: Armory): void {
  type Send = (this: RedisClient, command: RedisCommand, ...more: unknown[]) => unknown;
  const prototype = Client.prototype as { sendCommand: Send };
  const { sendCommand } = prototype;
  prototype.sendCommand = function (command, ...more) {
    for (const point of pointsOfCommand(command)) {
      // A pipeline cannot be put off in its middle: only what happens at once happens before.
      void armory.hit(point, 'before')?.act();
      if (armory.waitsFor(point, 'after')) holdCommand(this, command, armory, point);
    }
    return sendCommand.call(this, command, ...more);
  };
}

function pointsOfCommand({ name, args }: RedisCommand): FaultPoint[] {
  if (name !== 'xadd') return [];
  const payload = String(args.at(-1)).slice(0, 200);
  return POINTS.filter(
    ([, known]) => known.via === 'redis' && (known.event === null || payload.includes(`"type":"${known.event}"`)),
  ).map(([point]) => point);
}

function holdCommand(client: RedisClient, command: RedisCommand, armory: Armory, point: FaultPoint): void {
  const { resolve } = command;
  command.resolve = (value) => {
    const hit: Hit | null = armory.hit(point, 'after');
    const wait = hit?.act() ?? null;
    if (hit?.action === 'lose-reply') {
      client.stream.destroy();
      command.reject(new Error('Connection is closed.'));
    } else if (wait === null) resolve.call(command, value);
    else void wait.then(() => resolve.call(command, value));
  };
}

/** Webhooks (their request has a `webhook-id`) and model calls, which go through the global fetch. */
export function wrapHttp(module: Pick<typeof http, 'request'>, armory: Armory): void {
  const { request } = module;
  module.request = ((...args: unknown[]) => {
    const options = args[1] as http.RequestOptions | undefined;
    const isWebhook = typeof options === 'object' && options.headers !== undefined && 'webhook-id' in options.headers;
    if (!isWebhook) return Reflect.apply(request, module, args);
    void armory.hit('webhook', 'before')?.act();
    const answered = args[2] as (response: http.IncomingMessage) => void;
    const sent: http.ClientRequest = Reflect.apply(request, module, [
      args[0],
      options,
      (response: http.IncomingMessage) => {
        const hit = armory.hit('webhook', 'after');
        const wait = hit?.act() ?? null;
        if (hit?.action === 'lose-reply') sent.destroy(new Error('socket hang up'));
        else if (wait === null) answered(response);
        else void wait.then(() => answered(response));
      },
    ]);
    return sent;
  }) as typeof http.request;
  const { fetch } = globalThis;
  globalThis.fetch = async (input, init) => {
    const address = input instanceof Request ? input.url : String(input);
    if (!address.endsWith('/chat/completions')) return fetch(input, init);
    await armory.hit('model', 'before')?.act();
    const response = await fetch(input, init);
    await armory.hit('model', 'after')?.act();
    return response;
  };
}
