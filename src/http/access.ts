/** What a user may do, when code of the operator decides it: events that are asked about, and the filters that are the answer. */
import { RunledgerError } from '#src/errors.ts';

/** What the code of the operator says of a user; more fields than these are its own affair. */
export interface AuthUser {
  readonly identity: string;
  readonly display_name: string;
  readonly permissions: readonly string[];
  readonly is_authenticated: boolean;
  readonly [field: string]: unknown;
}

/** `resource:action`, as the SDK's `Auth.on` names them. */
export type AuthEvent =
  | `assistants:${'create' | 'read' | 'update' | 'delete' | 'search'}`
  | `threads:${'create' | 'read' | 'update' | 'delete' | 'search' | 'create_run'}`
  | `crons:${'create' | 'read' | 'update' | 'delete' | 'search'}`
  | `store:${'put' | 'get' | 'search' | 'list_namespaces' | 'delete'}`;

type Scalar = string | number | boolean | null;

/**
 * What a resource must hold to be seen: every one of these is contained in it, as jsonb's `@>` has it. Empty: everything is seen.
 */
export type ResourceFilter = readonly { readonly [key: string]: Scalar | Scalar[] }[];

export interface Access {
  readonly user: AuthUser;
  /**
   * Asks whether the user may do this. `value` says with what; whoever answers may change it, and then that counts.
   * @returns what limits it further
   * @throws RunledgerError when it may not
   */
  authorize(event: AuthEvent, value: { [field: string]: unknown }): Promise<ResourceFilter>;
}

const EVERYTHING: ResourceFilter = [];

/** Asks for the request's user; where nobody decides, everything of the user's own is allowed. @throws RunledgerError */
export async function authorize(
  request: { principal: { access?: Access } },
  event: AuthEvent,
  value: { [field: string]: unknown },
): Promise<ResourceFilter> {
  return request.principal.access === undefined ? EVERYTHING : request.principal.access.authorize(event, value);
}

/** Whether the filter lets a resource with these fields (its metadata, most often) be seen. */
export function isSeen(fields: { readonly [key: string]: unknown }, filter: ResourceFilter): boolean {
  return filter.every((wanted) =>
    Object.entries(wanted).every(([key, value]) => Object.hasOwn(fields, key) && holds(fields[key], value)),
  );
}

function holds(value: unknown, wanted: Scalar | Scalar[]): boolean {
  if (!Array.isArray(wanted)) return value === wanted;
  return Array.isArray(value) && wanted.every((element) => value.includes(element));
}

/**
 * A handler's filters: `{key: scalar}`, `{key: {$eq: scalar}}`, `{key: {$contains: scalar or list}}`, all of which must hold.
 * Anything else is refused and not skipped: what a filter means to keep out must not get in because it was mistyped, or because
 * the value it compares with is missing.
 * @throws TypeError naming the key
 */
export function compiledFilter(filter: object): ResourceFilter {
  return Object.entries(filter).flatMap(([key, condition]: [string, unknown]) => {
    if (isScalar(condition)) return [{ [key]: condition }];
    const operators = Object.entries(plainObject(condition, key));
    if (operators.length === 0) throw unknownFilter(key);
    return operators.map(([operator, operand]: [string, unknown]) => {
      if (operator === '$eq' && isScalar(operand)) return { [key]: operand };
      const list = Array.isArray(operand) ? operand : [operand];
      if (operator === '$contains' && list.length > 0 && list.every(isScalar)) return { [key]: list };
      throw unknownFilter(`${key}.${operator}`);
    });
  });
}

function plainObject(value: unknown, key: string): object {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  throw unknownFilter(key);
}

function isScalar(value: unknown): value is Scalar {
  return value === null || ['string', 'boolean'].includes(typeof value) || Number.isFinite(value);
}

function unknownFilter(path: string): TypeError {
  return new TypeError(`the filter on ${path} compares with nothing, or in a way this server does not know`);
}

/** A user that code of the operator sent away, in the words and with the status it chose for the client. */
export function sentAway(status: number, message: string, headers: { [name: string]: string }): RunledgerError {
  const code = status === 401 ? 'UNAUTHENTICATED' : status >= 500 ? 'UNAVAILABLE' : 'FORBIDDEN';
  return new RunledgerError(code, message, { details: { answer: { status, headers } } });
}

/** The status and headers of `sentAway`, for the form a dialect gives the refusal; undefined for any other refusal. */
export function answerOf(refusal: RunledgerError): { status: number; headers: { [name: string]: string } } | undefined {
  return refusal.details.answer as { status: number; headers: { [name: string]: string } } | undefined;
}
