/** The store as graphs see it: LangGraph's `BaseStore`, scoped to the owner of the run. */
import { BaseStore, type Item, type Operation, type OperationResults } from '@langchain/langgraph-checkpoint';
import type { Json, JsonObject } from '#src/events/event.ts';
import { toJson } from '#src/graphs/json.ts';
import type { StoreItem, StoreService } from './service.ts';

const DEFAULT_LIMIT = 10;

/** Operations of one batch are done in their order. */
export function createGraphStore(service: StoreService, owner: string): BaseStore {
  return new GraphStore(service, owner);
}

class GraphStore extends BaseStore {
  readonly #service: StoreService;
  readonly #owner: string;

  constructor(service: StoreService, owner: string) {
    super();
    this.#service = service;
    this.#owner = owner;
  }

  override async batch<Op extends Operation[]>(operations: Op): Promise<OperationResults<Op>> {
    const results: unknown[] = [];
    for (const operation of operations) results.push(await this.#do(operation));
    return results as OperationResults<Op>;
  }

  async #do(operation: Operation): Promise<unknown> {
    if ('namespacePrefix' in operation) {
      const { namespacePrefix: prefix, filter, limit = DEFAULT_LIMIT, offset = 0 } = operation;
      const wanted = filter === undefined ? undefined : (toJson(filter) as { [key: string]: Json });
      const search = { prefix, filter: wanted, limit, offset };
      return (await this.#service.search(this.#owner, search)).map(toGraphItem);
    }
    if (!('key' in operation)) return this.#namespaces(operation);
    const { namespace, key } = operation;
    if (!('value' in operation)) {
      const found = await this.#service.get(this.#owner, { namespace, key });
      return found === null ? null : toGraphItem(found);
    }
    if (operation.value === null) return this.#service.remove(this.#owner, { namespace, key });
    const value = toJson(operation.value) as JsonObject;
    return this.#service.put(this.#owner, { namespace, key, value, ttlMinutes: null });
  }

  #namespaces(operation: Extract<Operation, { limit: number }>): Promise<string[][]> {
    const {
      matchConditions = [],
      maxDepth,
      limit,
      offset,
    } = operation as {
      matchConditions?: { matchType: 'prefix' | 'suffix'; path: string[] }[];
      maxDepth?: number;
      limit: number;
      offset: number;
    };
    const path = (type: 'prefix' | 'suffix') => matchConditions.find(({ matchType }) => matchType === type)?.path ?? [];
    const search = { prefix: path('prefix'), suffix: path('suffix'), max_depth: maxDepth, limit, offset };
    return this.#service.namespaces(this.#owner, search);
  }
}

function toGraphItem({ namespace, key, value, created_at, updated_at }: StoreItem): Item {
  return { namespace, key, value, createdAt: new Date(created_at), updatedAt: new Date(updated_at) };
}
