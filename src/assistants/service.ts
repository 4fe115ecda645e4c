/** The door to assistants. Every call is scoped by owner; the server's own assistants are seen by all and changed by none. */
import { randomUUID } from 'node:crypto';
import { RunledgerError } from '#src/errors.ts';
import type { Json, JsonObject } from '#src/events/event.ts';
import type { GraphDescriber } from '#src/graphs/describe.ts';
import type { GraphSchemas } from '#src/graphs/graph.ts';
import type { Pool, Tx } from '#src/postgres/pool.ts';
import { inTransaction } from '#src/postgres/transaction.ts';
import type { Assistant, AssistantContent, AssistantFilter, AssistantPage } from './assistant.ts';
import { systemAssistantId } from './ids.ts';
import {
  addVersion,
  countAssistants,
  deleteAssistant,
  insertAssistant,
  lockAssistant,
  refreshSystemAssistant,
  selectAssistant,
  selectAssistants,
  selectVersions,
  setVersion,
} from './queries.ts';

export { ASSISTANT_ORDERS, type Assistant } from './assistant.ts';
export { systemAssistantId } from './ids.ts';

export interface AssistantService {
  /** @throws ASSISTANT_EXISTS unless `if_exists` is do_nothing, which gives what is there */
  create(
    owner: string,
    fields: AssistantContent & { id?: string | undefined; if_exists: 'raise' | 'do_nothing' },
  ): Promise<Assistant>;
  /** By id, or by the id of a graph: then the server's own of that graph. @throws ASSISTANT_NOT_FOUND */
  get(owner: string, idOrGraph: string): Promise<Assistant>;
  search(owner: string, page: AssistantPage): Promise<{ assistants: Assistant[]; total: number }>;
  count(owner: string, filter: AssistantFilter): Promise<number>;
  /** Always a new version, of what is given and, for the rest, of what was; metadata are merged. @throws ASSISTANT_NOT_FOUND, FORBIDDEN */
  update(
    owner: string,
    idOrGraph: string,
    fields: { [key in keyof AssistantContent]?: AssistantContent[key] | undefined },
  ): Promise<Assistant>;
  /** @throws ASSISTANT_NOT_FOUND, FORBIDDEN */
  remove(owner: string, idOrGraph: string): Promise<string>;
  /** Newest first. @throws ASSISTANT_NOT_FOUND */
  versions(
    owner: string,
    idOrGraph: string,
    page: { metadata?: JsonObject | undefined; limit: number; offset: number },
  ): Promise<Assistant[]>;
  /** Puts a former version in force again. @throws ASSISTANT_NOT_FOUND, ASSISTANT_VERSION_NOT_FOUND, FORBIDDEN */
  setLatest(owner: string, idOrGraph: string, version: number): Promise<Assistant>;
  /** Nodes and edges of its graph; @see GraphDescriber. @throws ASSISTANT_NOT_FOUND, GRAPH_NOT_FOUND */
  drawing(owner: string, idOrGraph: string, xray: boolean | number): Promise<Json>;
  /** @throws ASSISTANT_NOT_FOUND, GRAPH_NOT_FOUND */
  schemas(owner: string, idOrGraph: string): Promise<{ graphId: string; schemas: GraphSchemas }>;
  /** @throws ASSISTANT_NOT_FOUND, GRAPH_NOT_FOUND */
  subgraphs(
    owner: string,
    idOrGraph: string,
    which: { namespace: string | undefined; recurse: boolean },
  ): Promise<{ [namespace: string]: GraphSchemas }>;
}

export interface AssistantDeps {
  pool: Pool;
  /** Ids of the configured graphs. */
  graphIds: string[];
  /** What the server's own assistants are configured with, by graph id. */
  defaults: { readonly [graphId: string]: { readonly config: JsonObject; readonly context: Json } };
}

/** Makes sure that every configured graph has an assistant of its own. Any number of processes may do it at once. */
export async function ensureSystemAssistants({ pool, graphIds, defaults }: AssistantDeps): Promise<void> {
  for (const graphId of graphIds) {
    const { config, context } = defaults[graphId] ?? { config: {}, context: {} };
    const id = systemAssistantId(graphId);
    const content = { graph_id: graphId, name: graphId, description: null, config, context };
    const made = await insertAssistant(pool, id, null, { ...content, metadata: { created_by: 'system' } });
    if (made === null) await refreshSystemAssistant(pool, id, { config, context });
  }
}

export function createAssistantService(
  deps: Pick<AssistantDeps, 'pool' | 'graphIds'> & { describer: GraphDescriber },
): AssistantService {
  const { pool, graphIds, describer } = deps;
  const viewer = (owner: string) => ({ owner, graphIds });
  const idOf = (idOrGraph: string): string => {
    if (graphIds.includes(idOrGraph)) return systemAssistantId(idOrGraph);
    if (UUID.test(idOrGraph)) return idOrGraph;
    throw notFound();
  };

  async function get(owner: string, idOrGraph: string): Promise<Assistant> {
    const found = await selectAssistant(pool, viewer(owner), idOf(idOrGraph));
    if (found === null) throw notFound();
    return found;
  }

  /** What its graph is made from. @throws ASSISTANT_NOT_FOUND, GRAPH_NOT_FOUND */
  async function graphOf(owner: string, idOrGraph: string): Promise<[graphId: string, configurable: JsonObject]> {
    const { graph_id: graphId, config } = await get(owner, idOrGraph);
    if (!graphIds.includes(graphId)) throw new RunledgerError('GRAPH_NOT_FOUND', `Graph "${graphId}" not found`);
    const { configurable } = config;
    const isObject = typeof configurable === 'object' && configurable !== null && !Array.isArray(configurable);
    return [graphId, isObject ? configurable : {}];
  }

  /** The owner's assistant, locked. @throws ASSISTANT_NOT_FOUND, FORBIDDEN */
  async function locked(tx: Tx, owner: string, idOrGraph: string): Promise<Assistant> {
    const found = await lockAssistant(tx, viewer(owner), idOf(idOrGraph));
    if (found === null) throw notFound();
    if (found.owner === null) throw new RunledgerError('FORBIDDEN', "The server's own assistants cannot be changed.");
    return found;
  }

  return {
    get,
    async create(owner, { id = randomUUID(), if_exists, ...content }) {
      const made = await insertAssistant(pool, id, owner, content);
      if (made !== null) return made;
      const there = if_exists === 'raise' ? null : await selectAssistant(pool, viewer(owner), id);
      if (there === null) throw new RunledgerError('ASSISTANT_EXISTS', 'Assistant already exists');
      return there;
    },
    search: (owner, page) => selectAssistants(pool, viewer(owner), page),
    count: (owner, filter) => countAssistants(pool, viewer(owner), filter),
    update(owner, idOrGraph, fields) {
      return inTransaction(pool, async (tx) => {
        const { id, graph_id, name, description, config, context, metadata } = await locked(tx, owner, idOrGraph);
        return addVersion(tx, id, {
          graph_id: fields.graph_id ?? graph_id,
          name: fields.name ?? name,
          description: fields.description === undefined ? description : fields.description,
          config: fields.config ?? config,
          context: fields.context === undefined ? context : fields.context,
          metadata: { ...metadata, ...fields.metadata },
        });
      });
    },
    remove(owner, idOrGraph) {
      return inTransaction(pool, async (tx) => {
        const { id } = await locked(tx, owner, idOrGraph);
        await deleteAssistant(tx, id);
        return id;
      });
    },
    async versions(owner, idOrGraph, page) {
      const { id } = await get(owner, idOrGraph);
      return selectVersions(pool, id, page);
    },
    async setLatest(owner, idOrGraph, version) {
      const id = await inTransaction(pool, async (tx) => {
        const found = await locked(tx, owner, idOrGraph);
        if (await setVersion(tx, found.id, version)) return found.id;
        throw new RunledgerError('ASSISTANT_VERSION_NOT_FOUND', 'Assistant version not found');
      });
      return get(owner, id);
    },
    drawing: async (owner, idOrGraph, xray) => describer.drawing(...(await graphOf(owner, idOrGraph)), xray),
    async schemas(owner, idOrGraph) {
      const [graphId, configurable] = await graphOf(owner, idOrGraph);
      return { graphId, schemas: await describer.schemas(graphId, configurable) };
    },
    subgraphs: async (owner, idOrGraph, which) => describer.subgraphs(...(await graphOf(owner, idOrGraph)), which),
  };
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

function notFound(): RunledgerError {
  return new RunledgerError('ASSISTANT_NOT_FOUND', 'Assistant not found');
}
