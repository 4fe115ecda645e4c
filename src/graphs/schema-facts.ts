/** What must be known of a type to say its JSON schema: whether it has a name, what of it is on the wire, what it stands for. */
import type ts from 'typescript';
import type { JsonObject } from '#src/events/event.ts';

export interface TypeFacts {
  /** A class or an interface: it has a name of its own, under which it is defined. */
  isDeclared(type: ts.Type): boolean;
  isFunction(type: ts.Type): boolean;
  /** What the type is called where a name is needed; others may be called so, too. */
  nameOf(type: ts.Type): string;
  /** The properties that are data, in their order. */
  fieldsOf(type: ts.Type): SchemaField[];
  /** For an abstract class: the classes of the program whose objects are of it without further choice. */
  heirsOf(type: ts.Type): ts.Type[];
  /** For what the language or Node declares, which has no fields on the wire, or is a string. */
  ofLanguage(type: ts.Type): JsonObject | null;
  /** The documentation as `description`, where there is any. */
  described(symbol: ts.Symbol | undefined): JsonObject;
}

/** A property of what is described: of a type, or a channel of a graph. */
export interface SchemaField {
  name: string;
  type: ts.Type;
  /** Where its documentation is. */
  symbol: ts.Symbol;
  isOptional: boolean;
}

export function createTypeFacts(compiler: typeof ts, program: ts.Program): TypeFacts {
  const { TypeFlags, SymbolFlags, ModifierFlags } = compiler;
  const checker = program.getTypeChecker();
  const symbolFlags = (type: ts.Type): number => type.getSymbol()?.flags ?? 0;
  const isList = (type: ts.Type): boolean => checker.isArrayType(type) || checker.isTupleType(type);

  function isDeclared(type: ts.Type): boolean {
    return (symbolFlags(type) & (SymbolFlags.Class | SymbolFlags.Interface)) !== 0 && !isList(type);
  }

  function isOfLanguage(file: ts.SourceFile): boolean {
    return program.isSourceFileDefaultLibrary(file) || file.fileName.includes('/node_modules/@types/node/');
  }

  function isFunction(type: ts.Type): boolean {
    const given = checker.getNonNullableType(type);
    return given.getCallSignatures().length > 0 && checker.getPropertiesOfType(given).length === 0;
  }

  function isOptional(symbol: ts.Symbol, type: ts.Type): boolean {
    if (symbol.flags & SymbolFlags.Optional || type.flags & (TypeFlags.Any | TypeFlags.Unknown)) return true;
    return type.isUnion() && type.types.some(({ flags }) => (flags & TypeFlags.Undefined) !== 0);
  }

  /** Of a class: a public field that is not LangChain's own bookkeeping. */
  function isData({ flags, name, declarations = [] }: ts.Symbol): boolean {
    if (!(flags & SymbolFlags.Property) || name.startsWith('_') || name.startsWith('lc_')) return false;
    return declarations.every(
      (declaration) =>
        !(compiler.getCombinedModifierFlags(declaration) & (ModifierFlags.Private | ModifierFlags.Protected)),
    );
  }

  function isAbstract(type: ts.Type): boolean {
    const { declarations = [] } = type.getSymbol() ?? {};
    return declarations.some((declaration) => compiler.getCombinedModifierFlags(declaration) & ModifierFlags.Abstract);
  }

  function heirsIn(file: ts.SourceFile, type: ts.Type): ts.Type[] {
    const name = type.getSymbol()?.name;
    return file.statements.filter(compiler.isClassDeclaration).flatMap((declaration) => {
      const { typeParameters, heritageClauses = [] } = declaration;
      const clause = heritageClauses.find(({ token }) => token === compiler.SyntaxKind.ExtendsKeyword);
      // By name first: the type of every class in every package is too much to ask for.
      const parent = clause?.types[0]?.expression.getText(file).split('.').pop();
      if (typeParameters !== undefined || parent !== name) return [];
      const heir = checker.getTypeAtLocation(declaration);
      const isHeir = heir.isClass() && checker.getBaseTypes(heir).some((base) => base === type);
      return isHeir && !isAbstract(heir) ? [heir] : [];
    });
  }

  return {
    isDeclared,
    isFunction,
    nameOf(type) {
      const { NoTruncation, UseAliasDefinedOutsideCurrentScope } = compiler.TypeFormatFlags;
      const told = checker.typeToString(type, undefined, NoTruncation | UseAliasDefinedOutsideCurrentScope);
      const short = told.replace(/\s/g, '');
      // A slash would part the reference; what is long or names a file is not a name.
      if (short.length <= 200 && !/[/~{"']/.test(short)) return short;
      return (type.aliasSymbol ?? type.getSymbol())?.name.replace(/\W/g, '') || 'type';
    },
    fieldsOf(type) {
      const isClass = (symbolFlags(type) & SymbolFlags.Class) !== 0;
      return (
        checker
          .getPropertiesOfType(type)
          .filter((symbol) => !isClass || isData(symbol))
          .map((symbol) => ({ symbol, name: symbol.name, type: checker.getTypeOfSymbol(symbol) }))
          .map((field) => ({ ...field, isOptional: isOptional(field.symbol, field.type) }))
          // The names of properties that are symbols begin so.
          .filter(({ name }) => !name.startsWith('__@'))
      );
    },
    heirsOf: (type) => (isAbstract(type) ? program.getSourceFiles().flatMap((file) => heirsIn(file, type)) : []),
    ofLanguage(type) {
      const symbol = type.getSymbol();
      if (symbol === undefined || !isDeclared(type)) return null;
      if (!symbol.declarations?.some((declaration) => isOfLanguage(declaration.getSourceFile()))) return null;
      if (symbol.name === 'Date') return { type: 'string', format: 'date-time' };
      if (symbol.name === 'URL') return { type: 'string', format: 'uri' };
      return { type: 'object' };
    },
    described(symbol) {
      const text = compiler.displayPartsToString(symbol?.getDocumentationComment(checker)).trim();
      return text === '' ? {} : { description: text };
    },
  };
}
