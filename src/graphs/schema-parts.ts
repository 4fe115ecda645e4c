/** What the static type of an export says of the graph it is, or makes: the types of its state, input, output and configuration. */
import type ts from 'typescript';
import type { Json } from '#src/events/event.ts';
import type { GraphSchemas } from './graph.ts';
import type { SchemaField } from './schema-facts.ts';
import type { SchemaWriter } from './schema-types.ts';

/** How often a factory may give a promise of an agent with a graph in it. */
const MAX_WRAPPERS = 6;

export interface GraphParts {
  /** A compiled graph, as it can be added to another. */
  isGraph(type: ts.Type): boolean;
  /** Null when the type is not that of a graph. */
  schemasOf(type: ts.Type): GraphSchemas | null;
}

/** Where a definition names no channels, what goes in and comes out is the state. */
function withFields(schema: Json): Json {
  return typeof schema === 'object' && schema !== null && ('properties' in schema || 'anyOf' in schema) ? schema : null;
}

/** LangGraph has types beside its values for this: `~InputType`, `~OutputType`, `~RunOutput`, `_configSchema`, `ValueType`. */
export function createGraphParts(
  compiler: typeof ts,
  checker: ts.TypeChecker,
  { ofType, ofFields }: SchemaWriter,
): GraphParts {
  const { Any, Unknown, Never } = compiler.TypeFlags;

  function member(type: ts.Type, name: string): ts.Type | null {
    const symbol = checker.getPropertyOfType(type, name);
    return symbol === undefined ? null : checker.getTypeOfSymbol(symbol);
  }

  function returned(type: ts.Type): ts.Type | null {
    // Of several signatures the last is the most general.
    const signature = type.getCallSignatures().at(-1);
    return signature === undefined ? null : checker.getReturnTypeOfSignature(signature);
  }

  /** The compiled graph in a factory, a promise, an agent or a graph that is not compiled. */
  function graphIn(exported: ts.Type): ts.Type | null {
    let type = exported;
    for (let n = 0; n < MAX_WRAPPERS; n++) {
      if (type.flags & (Any | Unknown)) return null;
      if (member(type, 'lg_is_pregel') !== null) return type;
      const compile = member(type, 'compile');
      const inside =
        returned(type) ?? awaited(type) ?? member(type, 'graph') ?? (compile === null ? null : returned(compile));
      if (inside === null) return null;
      type = inside;
    }
    return null;
  }

  function awaited(type: ts.Type): ts.Type | null {
    const value = checker.getAwaitedType(type);
    return value === undefined || value === type ? null : value;
  }

  /** The values of channels, of which none need be there, by name; null for a definition of another kind (Zod, StateSchema). */
  function fieldsOf(definition: ts.Type): SchemaField[] | null {
    const root = member(definition, 'lc_graph_name') === null ? null : member(definition, 'spec');
    const fields = checker.getPropertiesOfType(root ?? definition).map((symbol) => {
      const channel = checker.getTypeOfSymbol(symbol);
      const type = member(returned(channel) ?? channel, 'ValueType');
      return type === null ? null : { name: symbol.name, symbol, type, isOptional: true };
    });
    return fields.some((field) => field === null) ? null : fields.filter((field) => field !== null);
  }

  /** Anything may be missing in a state, whatever its type says: nothing need have written it yet. */
  function objectOf(type: ts.Type | null): Json {
    if (type === null || type.flags & (Any | Unknown | Never)) return null;
    // What a function of the functional API gives is a promise.
    const { required: _required, ...schema } = ofType(awaited(type) ?? type);
    return schema;
  }

  function definitionOf(type: ts.Type | null): Json {
    if (type === null || type.flags & (Any | Unknown)) return null;
    const fields = fieldsOf(checker.getNonNullableType(type));
    return fields === null ? null : ofFields(fields);
  }

  return {
    isGraph: (type) => member(type, 'lg_is_pregel') !== null,
    schemasOf(exported) {
      const graph = graphIn(exported);
      if (graph === null) return null;
      const state = objectOf(member(graph, '~RunOutput'));
      const input = objectOf(member(graph, '~InputType'));
      const output = objectOf(member(graph, '~OutputType'));
      const builder = member(graph, 'builder');
      // Of the functional API.
      if (builder === null) return { state, input, output, config: null };
      return {
        state,
        // Not what may be written to the channels (also one message, or a text for one), but what is then in them.
        input: withFields(definitionOf(member(builder, '_inputDefinition'))) ?? withFields(input) ?? state,
        output: withFields(output) ?? state,
        config: definitionOf(member(builder, '_configSchema')),
      };
    },
  };
}
