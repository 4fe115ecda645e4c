/** A choice between JSON schemas, said in the shortest way. */
import { isDeepStrictEqual } from 'node:util';
import type { Json, JsonObject } from '#src/events/event.ts';

const BOOLEAN: JsonObject = { type: 'boolean' };

/** Literals become one `enum` and plain types one `type`, both sorted: the compiler's order depends on what it met first. */
export function anyOf(schemas: JsonObject[]): JsonObject {
  const booleans = schemas.filter((schema) => isLiteral(schema) && schema.type === 'boolean');
  const all = booleans.length < 2 ? schemas : [...schemas.filter((schema) => !booleans.includes(schema)), BOOLEAN];
  const literals = all.filter(isLiteral);
  const plain = all.filter((schema) => Object.keys(schema).join() === 'type');
  const rest = unique(all.filter((schema) => !literals.includes(schema) && !plain.includes(schema)));
  // null beside literals is one more of them
  const nulled = literals.length > 0 && plain.length > 0 && plain.every(({ type }) => type === 'null');
  const choices = [
    ...rest,
    ...(literals.length === 0 ? [] : [enumOf(nulled ? [...literals, { type: 'null', const: null }] : literals)]),
    ...(plain.length === 0 || nulled ? [] : [{ type: oneOrMore(plain.map(typeOf)) }]),
  ];
  const [only, ...others] = choices;
  // `{}` lets everything in.
  if (only === undefined || choices.some((choice) => Object.keys(choice).length === 0)) return {};
  return others.length === 0 ? only : { anyOf: choices };
}

function isLiteral(schema: JsonObject): boolean {
  return schema.const !== undefined;
}

function enumOf(literals: JsonObject[]): JsonObject {
  const [only, ...others] = literals;
  if (only !== undefined && others.length === 0) return only;
  const values = literals.map(({ const: value = null }) => value);
  const isNull = (value: Json): boolean => value === null;
  return {
    type: oneOrMore(literals.map(typeOf)),
    enum: [...sorted(values.filter((value) => !isNull(value))), ...values.filter(isNull)],
  };
}

function typeOf({ type = null }: JsonObject): Json {
  return type;
}

function oneOrMore(types: Json[]): Json {
  const [only = null, ...others] = sorted(unique(types));
  return others.length === 0 ? only : [only, ...others];
}

function sorted(values: Json[]): Json[] {
  return values.sort((a, b) => (String(a) < String(b) ? -1 : 1));
}

function unique<T>(values: T[]): T[] {
  return values.filter((value, at) => values.findIndex((other) => isDeepStrictEqual(other, value)) === at);
}
