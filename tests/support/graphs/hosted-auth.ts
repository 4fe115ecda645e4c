/**
 * Users come as `x-user: name` or `name:permission,permission`, their team as `x-team`. Threads are shown to those of the team that
 * made them; what made them is in their metadata.
 */
import { Auth, HTTPException } from '@langchain/langgraph-sdk/auth';

interface Asked {
  event: string;
  action: string;
  value: {
    metadata?: object;
    namespace?: string[] | null;
    thread_id?: unknown;
    kwargs?: { input?: unknown; content?: unknown; config?: unknown };
  };
  user: { identity: string; team?: string };
  permissions: string[];
}

function threads({ event, action, value, user, permissions }: Asked) {
  const { team } = user;
  if (permissions.includes('mistyped')) return { team: { $equals: team } };
  if (permissions.includes('nothing')) return { team: undefined };
  if (permissions.includes('refused')) return false;
  if (permissions.includes('reader') && action === 'update') return false;
  // What is to be run, and nothing else that the client says of it.
  if (permissions.includes('plain') && value.kwargs !== undefined) {
    const { input, content } = value.kwargs;
    value.kwargs = { ...(input === undefined ? {} : { input }), ...(content === undefined ? {} : { content }) };
  }
  if (['create', 'update', 'create_run'].includes(action)) value.metadata = { ...value.metadata, team, asked: event };
  return { team };
}

function assistants({ action, value, user }: Asked) {
  if (action === 'create') value.metadata = { ...value.metadata, by: user.identity };
  return { by: user.identity };
}

function store({ value, user }: Asked) {
  value.namespace = [user.identity, ...(value.namespace ?? [])];
  return { namespace: { $contains: user.identity } };
}

export const auth = new Auth()
  .authenticate(async (request) => {
    const header = request.headers.get('x-user');
    if (header === null) {
      throw new HTTPException(401, { message: 'Who are you?', headers: { 'WWW-Authenticate': 'Name realm="test"' } });
    }
    if (header === 'broken') throw new Error('a secret of the user table');
    const [identity = '', permissions = ''] = header.split(':');
    const team = request.headers.get('x-team') ?? 'red';
    return { identity, permissions: permissions.split(',').filter(Boolean), team, path: new URL(request.url).pathname };
  })
  .on('*', ({ event }) => {
    throw new HTTPException(403, { message: `nobody may ${event}` });
  })
  .on('*:delete', () => {
    throw new HTTPException(403, { message: 'not asked: there is one for the resource' });
  })
  .on('threads', (asked) => threads(asked as unknown as Asked) as never)
  .on('threads:delete', () => {
    throw new HTTPException(402, { message: 'Deleting is not free.' });
  })
  .on(['assistants:create', 'assistants:read', 'assistants:search'], (asked) => assistants(asked as unknown as Asked))
  .on('crons', (asked) => threads(asked as unknown as Asked) as never)
  .on('store', (asked) => store(asked as unknown as Asked) as never);
