/** What clients send: bodies, queries and headers of the REST dialect, checked, and turned into requests to the core. */
import type { FastifyRequest } from 'fastify';
import { z } from 'zod';
import { type RefusalCode, RunledgerError } from '#src/errors.ts';
import { BEFORE_START, type Cursor, parseCursor } from '#src/events/cursor.ts';
import type { Json, JsonObject } from '#src/events/event.ts';

/** The body was parsed as JSON, so whatever a client may put here is Json. */
const json = z.unknown() as unknown as z.ZodType<Json>;
const jsonObject: z.ZodType<JsonObject> = z.record(z.string(), json);
const MAX_TITLE_LENGTH = 500;
const MAX_RECURSION_LIMIT = 1000;
const MAX_PAGE = 100;

const textPart = z.looseObject({ type: z.literal('text'), text: z.string() });
const otherPart = z.looseObject({ type: z.string().min(1) });
const contentPart = otherPart.superRefine((part, context) => {
  if (part.type !== 'text' || textPart.safeParse(part).success) return;
  context.addIssue({ code: 'custom', path: ['text'], message: 'a part of type text needs a string here' });
}) as unknown as z.ZodType<JsonObject>;

/** A string, or a list of content parts as the OpenAI and LangChain APIs have them. */
const content = z
  .union([z.string(), z.array(contentPart)])
  .refine((value) => !isBlank(value), { message: 'must not be empty' })
  .describe('Text, or content parts: objects with a `type`; a part of type `text` has its text in `text`.');

/** Ids of ours that the server sets itself; a client that could set them would continue somebody else's work. */
const RESERVED_KEYS = new Set(['thread_id', 'checkpoint_id', 'checkpoint_ns', 'checkpoint_map', 'run_id']);

const configurable = jsonObject.superRefine((value, context) => {
  for (const key of Object.keys(value)) {
    if (!key.startsWith('__') && !key.startsWith('langgraph_auth_') && !RESERVED_KEYS.has(key)) continue;
    context.addIssue({ code: 'custom', path: [key], message: 'this key is set by the server' });
  }
});

const config = z.strictObject({
  configurable: configurable.exactOptional().describe('Reaches the graph as `config.configurable`.'),
  recursion_limit: z.int().min(1).max(MAX_RECURSION_LIMIT).exactOptional(),
  tags: z.array(z.string()).exactOptional(),
  metadata: jsonObject.exactOptional(),
});

const onDisconnect = z
  .enum(['continue', 'cancel'])
  .describe('What happens to the run when the client closes the response that created it. Default: continue.');
const requestKey = z
  .string()
  .min(1)
  .max(255)
  .describe('The same key and body again give the first result. `Idempotency-Key` does the same.');
const title = z.string().max(MAX_TITLE_LENGTH);
const flag = z.enum(['true', 'false']).transform((value) => value === 'true');

export const threadCreateBody = z
  .strictObject({
    title: title.optional(),
    graph: z.string().min(1).optional().describe('The graph of its turns when a message names none.'),
    metadata: jsonObject.optional(),
  })
  .prefault({});

export const threadUpdateBody = z.strictObject({
  title: title.nullable().optional(),
  metadata: jsonObject.optional(),
  archived: z.boolean().optional(),
  pinned: z.boolean().optional(),
});

export const threadListQuery = z.strictObject({
  limit: z.coerce.number().int().min(1).max(MAX_PAGE).default(20),
  cursor: z.string().min(1).optional().describe('`next_cursor` of the page before.'),
  archived: flag.optional(),
});

export const threadDeleteQuery = z.strictObject({
  force: flag.optional().describe('Stop a live run first, instead of answering 409.'),
});

const webhook = z
  .string()
  .min(1)
  .max(2048)
  .describe('An http or https URL that is told of the end of the run, signed, at least once.');

export const messageBody = z.strictObject({
  content,
  graph: z.string().min(1).optional(),
  request_key: requestKey.optional(),
  config: config.optional(),
  on_disconnect: onDisconnect.optional(),
  webhook: webhook.optional(),
});

export const answerBody = z.strictObject({
  interrupts: jsonObject
    .refine((value) => Object.keys(value).length > 0, { message: 'must name at least one interrupt' })
    .describe('Interrupt id to the value it is answered with.'),
  request_key: requestKey.optional(),
  config: config.optional(),
  on_disconnect: onDisconnect.optional(),
  webhook: webhook.optional(),
});

export const retryBody = z
  .strictObject({
    request_key: requestKey.optional(),
    config: config.optional().describe('Default: that of the first try.'),
    on_disconnect: onDisconnect.optional(),
    webhook: webhook.optional(),
  })
  .nullish();

export const streamQuery = z.strictObject({
  run_id: z.string().optional().describe('Default: the latest run of the thread.'),
  last_event_id: z
    .string()
    .optional()
    .describe('The id of the last frame received; wins over the `Last-Event-ID` header. Default: from the start.'),
});

export const deliveriesQuery = z.strictObject({
  status: z.enum(['pending', 'delivered', 'dead']).optional(),
  limit: z.coerce.number().int().min(1).max(100).default(20),
  cursor: z.string().optional(),
});

export const cancelQuery = z.strictObject({
  run_id: z.string().optional().describe('Default: the live run of the thread.'),
  wait: flag.optional().describe('Answer when the run has ended.'),
});

export const idParams = z.object({ id: z.string().describe('A UUID.') });

/** The id, in lower case. What is no UUID names nothing: @throws RunledgerError `code` */
export function uuidOr(code: keyof typeof ABSENT, id: string): string {
  if (/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id)) return id.toLowerCase();
  throw new RunledgerError(code, ABSENT[code]);
}

const ABSENT = {
  THREAD_NOT_FOUND: 'There is no such thread.',
  RUN_NOT_FOUND: 'There is no such run.',
  DELIVERY_NOT_FOUND: 'There is no such delivery.',
} as const satisfies { [code in RefusalCode]?: string };

/**
 * Where a reader continues. The query wins over the header; an empty one counts as none; none is BEFORE_START.
 * @throws RunledgerError INVALID_CURSOR
 */
export function cursorOf(request: Pick<FastifyRequest, 'headers'>, lastEventId: string | undefined): Cursor {
  const header = request.headers['last-event-id'];
  const [text, path] =
    lastEventId !== undefined && lastEventId !== '' ? [lastEventId, 'last_event_id'] : [header ?? '', 'last-event-id'];
  if (text === '') return BEFORE_START;
  const cursor = typeof text === 'string' ? parseCursor(text) : null;
  if (cursor !== null) return cursor;
  throw new RunledgerError('INVALID_CURSOR', 'The last event id is none that this server gave.', { path });
}

/**
 * The request key of the body or of the `Idempotency-Key` header.
 * @throws RunledgerError INVALID_REQUEST when both are there and differ, or the header is no key
 */
export function requestKeyOf(request: Pick<FastifyRequest, 'headers'>, inBody: string | undefined): string | undefined {
  const header = request.headers['idempotency-key'];
  if (header === undefined || header === '') return inBody;
  const key = requestKey.safeParse(header);
  if (!key.success || (inBody !== undefined && inBody !== key.data)) {
    const message = key.success ? 'differs from the request key of the body' : 'must be 1 to 255 characters';
    throw new RunledgerError('INVALID_REQUEST', `Idempotency-Key ${message}.`, { path: 'idempotency-key' });
  }
  return key.data;
}

/** Whether the client asks for an event stream instead of a short answer: it names the type itself, `*` is not enough. */
export function wantsStream(request: Pick<FastifyRequest, 'headers'>): boolean {
  return (request.headers.accept ?? '').split(',').some((range) => {
    const [type, ...parameters] = range.split(';').map((part) => part.trim().toLowerCase());
    return type === 'text/event-stream' && !parameters.some((parameter) => /^q=0(\.0*)?$/.test(parameter));
  });
}

function isBlank(value: string | JsonObject[]): boolean {
  if (typeof value === 'string') return value.trim() === '';
  return value.every((part) => part.type === 'text' && typeof part.text === 'string' && part.text.trim() === '');
}
