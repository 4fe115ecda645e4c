/** The past of a thread as messages for a model: what a new turn of a graph with context `transcript` starts from. */
import type { Json, JsonObject } from '#src/events/event.ts';
import type { Queryable } from '#src/postgres/pool.ts';

/** Turns of the past a new turn is given. */
const TURNS = 20;

const PAST = `
  select m.role, m.content, m.id, m.stream_id, m.partial
  from messages m
  join turns t on t.id = m.turn_id
  where t.thread_id = $1::uuid and not m.replaced
    and t.ordinal < (select ordinal from turns where id = $2::uuid)
    and t.ordinal >= (select ordinal from turns where id = $2::uuid) - $3
  order by t.ordinal, m.seq`;

interface PastRow {
  role: 'user' | 'assistant';
  content: Json;
  id: string;
  stream_id: string | null;
  partial: boolean;
}

/** Messages of the last 20 turns before `turnId`, oldest first, in LangChain's dict form. */
export async function transcriptBefore(db: Queryable, threadId: string, turnId: string): Promise<JsonObject[]> {
  const { rows } = await db.query<PastRow>(PAST, [threadId, turnId, TURNS]);
  return rows.flatMap((row): JsonObject[] => {
    if (row.role === 'user') return [{ type: 'human', id: row.id, content: row.content }];
    const answer: JsonObject = { type: 'ai', id: row.stream_id ?? row.id, content: row.content };
    if (!row.partial) return [answer];
    return [answer, { type: 'system', content: 'The answer above was not completed.' }];
  });
}
