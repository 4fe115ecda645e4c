/**
 * JSON schemas of static types, as a value of the type is on the wire: a Date is a string, a function is not there.
 *
 * The libraries that do this (typescript-json-schema, ts-json-schema-generator) bring a compiler of their own, 24 MB in every
 * installation, and take no other: they would not see the types as the project's own compiler does. The second reads declarations,
 * too, and what a graph's state is, is inferred. So the compiler that is found is asked directly.
 */
import type ts from 'typescript';
import type { JsonObject } from '#src/events/event.ts';
import { createTypeFacts, type SchemaField } from './schema-facts.ts';
import { anyOf } from './schema-union.ts';

/** Writes one schema after the other; each has its own definitions. */
export interface SchemaWriter {
  ofType(type: ts.Type): JsonObject;
  ofFields(fields: SchemaField[]): JsonObject;
}

/** Deeper, or in more places, a schema says nothing more: types may be endless. */
const MAX_DEPTH = 24;
const MAX_PLACES = 5_000;

const DRAFT = 'http://json-schema.org/draft-07/schema#';

/** @param compiler the compiler that made the program */
export function createSchemaWriter(compiler: typeof ts, program: ts.Program): SchemaWriter {
  const [{ TypeFlags }, checker] = [compiler, program.getTypeChecker()];
  const facts = createTypeFacts(compiler, program);
  let definitions: { [name: string]: JsonObject } = {};
  let names = new Map<ts.Type, string>();
  /** Types being written, outermost first. */
  let open: ts.Type[] = [];
  let root: ts.Type | null = null;
  let places = 0;

  function whole(write: () => JsonObject): JsonObject {
    [definitions, names, open, places] = [{}, new Map(), [], 0];
    const schema = write();
    return { ...schema, ...(Object.keys(definitions).length === 0 ? {} : { definitions }), $schema: DRAFT };
  }

  function schemaOf(type: ts.Type): JsonObject {
    const simple = simpleSchema(type);
    if (simple !== null) return simple;
    if (type === root) return { $ref: '#' };
    if (names.has(type)) return referenceTo(type);
    if (++places > MAX_PLACES || open.length >= MAX_DEPTH) return {};
    if (open.includes(type)) return referenceTo(type);
    if (facts.isDeclared(type)) nameOf(type);
    return written(type);
  }

  /** A type with a name, which it may have got when it was met again within itself, goes where references look. */
  function written(type: ts.Type): JsonObject {
    open.push(type);
    const schema = structure(type);
    open.pop();
    const name = names.get(type);
    if (name === undefined) return schema;
    definitions[name] = schema;
    return referenceTo(type);
  }

  function referenceTo(type: ts.Type): JsonObject {
    return { $ref: `#/definitions/${nameOf(type)}` };
  }

  /** Null for what has an inside. */
  function simpleSchema(type: ts.Type): JsonObject | null {
    const { flags } = type;
    const has = (flag: ts.TypeFlags): boolean => (flags & flag) !== 0;
    if (has(TypeFlags.Null)) return { type: 'null' };
    if (type.isStringLiteral()) return { type: 'string', const: type.value };
    if (type.isNumberLiteral()) return { type: 'number', const: type.value };
    if (has(TypeFlags.BooleanLiteral)) return { type: 'boolean', const: checker.typeToString(type) === 'true' };
    if (has(TypeFlags.Boolean)) return { type: 'boolean' };
    if (has(TypeFlags.Union)) return null;
    if (has(TypeFlags.StringLike | TypeFlags.Index)) return { type: 'string' };
    if (has(TypeFlags.NumberLike)) return { type: 'number' };
    if (has(TypeFlags.NonPrimitive)) return { type: 'object' };
    if (has(TypeFlags.Object | TypeFlags.Intersection)) return facts.ofLanguage(type);
    const constraint = checker.getBaseConstraintOfType(type);
    return constraint === undefined || constraint === type ? {} : schemaOf(constraint);
  }

  function structure(type: ts.Type): JsonObject {
    if (type.isUnion()) return unionSchema(type);
    if (type.isIntersection()) {
      // A string with a brand is a string.
      const primitive = type.types.find(({ flags }) => !(flags & (TypeFlags.Object | TypeFlags.Intersection)));
      if (primitive !== undefined) return schemaOf(primitive);
    }
    if (checker.isTupleType(type)) return tupleSchema(type as ts.TupleTypeReference);
    if (checker.isArrayType(type)) {
      const [item] = checker.getTypeArguments(type as ts.TypeReference);
      return { type: 'array', ...(item === undefined ? {} : { items: schemaOf(item) }) };
    }
    const description = facts.isDeclared(type) ? facts.described(type.getSymbol()) : {};
    const heirs = facts.heirsOf(type);
    if (heirs.length > 0) return { ...description, oneOf: heirs.map(schemaOf) };
    return { ...description, ...objectSchema(type) };
  }

  function objectSchema(type: ts.Type): JsonObject {
    const index = checker
      .getIndexInfosOfType(type)
      .find(({ keyType }) => keyType.flags & (TypeFlags.StringLike | TypeFlags.NumberLike));
    return {
      ...fieldsSchema(facts.fieldsOf(type)),
      ...(index === undefined ? {} : { additionalProperties: schemaOf(index.type) }),
    };
  }

  function fieldsSchema(all: SchemaField[]): JsonObject {
    const fields = all.filter(({ type }) => !facts.isFunction(type));
    const properties: JsonObject = {};
    for (const { name, type, symbol } of fields) {
      const schema = schemaOf(type);
      // Beside a reference nothing else is read.
      properties[name] = '$ref' in schema ? schema : { ...facts.described(symbol), ...schema };
    }
    const required = fields.filter(({ isOptional }) => !isOptional).map(({ name }) => name);
    return {
      type: 'object',
      ...(fields.length === 0 ? {} : { properties }),
      ...(required.length === 0 ? {} : { required: required.sort() }),
    };
  }

  function tupleSchema(type: ts.TupleTypeReference): JsonObject {
    const { minLength, hasRestElement, fixedLength } = type.target;
    const items = checker.getTypeArguments(type).map(schemaOf);
    return {
      type: 'array',
      items: items.slice(0, fixedLength),
      minItems: minLength,
      additionalItems: hasRestElement ? (items[fixedLength] ?? {}) : false,
    };
  }

  function unionSchema(type: ts.UnionType): JsonObject {
    const members = type.types.filter(({ flags }) => !(flags & (TypeFlags.Undefined | TypeFlags.Void)));
    return anyOf(members.filter((member) => !facts.isFunction(member)).map(schemaOf));
  }

  function nameOf(type: ts.Type): string {
    const known = names.get(type);
    if (known !== undefined) return known;
    const base = facts.nameOf(type);
    const taken = new Set(names.values());
    let name = base;
    for (let n = 1; taken.has(name); n++) name = `${base}_${n}`;
    names.set(type, name);
    return name;
  }

  return {
    ofType(type) {
      root = type;
      return whole(() => simpleSchema(type) ?? structure(type));
    },
    ofFields(fields) {
      root = null;
      return whole(() => fieldsSchema(fields));
    },
  };
}
