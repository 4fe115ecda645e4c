/**
 * Which node of a graph is which graph, as the source says it: the types do not. A graph's source is followed from where it is
 * exported through variables, imports and functions to every `addNode` on it. Nothing of it is run.
 */
import type ts from 'typescript';

/** A node, and what was added under its name. */
export interface SourceNode {
  name: string;
  action: ts.Expression;
}

export interface GraphSource {
  /** The nodes of the graph that an exported name stands for. */
  nodesOfExport(exported: ts.Symbol): SourceNode[];
  /** The nodes of the graph that an expression gives. */
  nodesOf(expression: ts.Expression): SourceNode[];
}

/** One walk back from an expression to everything its graph is made by. */
interface Walk {
  seen: Set<ts.Node>;
  /** Calls that add nodes, in the order they are met. */
  calls: Set<ts.CallExpression>;
}

const ADDING: ReadonlySet<string> = new Set(['addNode', 'addSequence']);

export function createGraphSource(compiler: typeof ts, checker: ts.TypeChecker): GraphSource {
  const isMethod = compiler.isPropertyAccessExpression;

  function bare(node: ts.Node): ts.Node {
    const isWrapped =
      compiler.isParenthesizedExpression(node) ||
      compiler.isAwaitExpression(node) ||
      compiler.isAsExpression(node) ||
      compiler.isSatisfiesExpression(node) ||
      compiler.isNonNullExpression(node);
    return isWrapped ? bare(node.expression) : node;
  }

  function follow(wrapped: ts.Node, walk: Walk): void {
    const node = bare(wrapped);
    if (walk.seen.has(node)) return;
    walk.seen.add(node);
    if (compiler.isCallExpression(node)) followCall(node, walk);
    else if (compiler.isFunctionLike(node)) followReturns(node, walk);
    else if (compiler.isConditionalExpression(node)) {
      follow(node.whenTrue, walk);
      follow(node.whenFalse, walk);
    } else if (compiler.isIdentifier(node) || compiler.isPropertyAccessExpression(node)) {
      const symbol = symbolOf(node);
      if (symbol !== undefined) followSymbol(symbol, walk);
    }
  }

  function followCall(call: ts.CallExpression, walk: Walk): void {
    const callee = bare(call.expression);
    if (isMethod(callee) && ADDING.has(callee.name.text)) walk.calls.add(call);
    follow(isMethod(callee) ? callee.expression : callee, walk);
  }

  function followReturns(node: ts.Node, walk: Walk): void {
    if (compiler.isArrowFunction(node) && !compiler.isBlock(node.body)) follow(node.body, walk);
    const visit = (inner: ts.Node): void => {
      if (compiler.isFunctionLike(inner)) return;
      if (compiler.isReturnStatement(inner) && inner.expression !== undefined) follow(inner.expression, walk);
      compiler.forEachChild(inner, visit);
    };
    compiler.forEachChild(node, visit);
  }

  function followSymbol(symbol: ts.Symbol, walk: Walk): void {
    for (const declaration of symbol.declarations ?? []) {
      if (declaration.getSourceFile().isDeclarationFile) continue;
      const value = valueIn(declaration);
      if (value !== null) follow(value, walk);
      if (compiler.isVariableDeclaration(declaration)) addUses(symbol, declaration.getSourceFile(), walk);
    }
  }

  function valueIn(declaration: ts.Declaration): ts.Node | null {
    if (compiler.isVariableDeclaration(declaration) || compiler.isPropertyAssignment(declaration)) {
      return declaration.initializer ?? null;
    }
    if (compiler.isExportAssignment(declaration)) return declaration.expression;
    // CommonJS: `exports.graph = …`
    if (compiler.isBinaryExpression(declaration)) return declaration.right;
    return compiler.isFunctionLike(declaration) ? declaration : null;
  }

  /** Calls on a variable, in statements of their own. */
  function addUses(symbol: ts.Symbol, file: ts.SourceFile, walk: Walk): void {
    const visit = (node: ts.Node): void => {
      if (compiler.isCallExpression(node)) {
        const callee = bare(node.expression);
        if (isMethod(callee) && ADDING.has(callee.name.text)) {
          const root = rootOf(callee.expression);
          if (compiler.isIdentifier(root) && symbolOf(root) === symbol) walk.calls.add(node);
        }
      }
      compiler.forEachChild(node, visit);
    };
    visit(file);
  }

  /** What a chain of calls begins with. */
  function rootOf(expression: ts.Node): ts.Node {
    const node = bare(expression);
    const isLink = compiler.isCallExpression(node) || compiler.isPropertyAccessExpression(node);
    return isLink ? rootOf(node.expression) : node;
  }

  function symbolOf(node: ts.Node): ts.Symbol | undefined {
    const symbol = compiler.isShorthandPropertyAssignment(node.parent)
      ? checker.getShorthandAssignmentValueSymbol(node.parent)
      : checker.getSymbolAtLocation(node);
    return symbol === undefined ? undefined : resolved(symbol);
  }

  function resolved(symbol: ts.Symbol): ts.Symbol {
    return symbol.flags & compiler.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
  }

  function addedBy({ arguments: [first, ...rest] }: ts.CallExpression): SourceNode[] {
    if (first === undefined) return [];
    const given = bare(first);
    if (compiler.isObjectLiteralExpression(given)) return given.properties.flatMap(addedByProperty);
    if (!compiler.isArrayLiteralExpression(given)) return added(first, ...rest);
    return given.elements.flatMap((element) => {
      const entry = bare(element);
      if (!compiler.isArrayLiteralExpression(entry)) return [];
      const [name, ...others] = entry.elements;
      return name === undefined ? [] : added(name, ...others);
    });
  }

  function addedByProperty(property: ts.ObjectLiteralElementLike): SourceNode[] {
    const { name } = property;
    if (name === undefined || !('text' in name)) return [];
    if (compiler.isPropertyAssignment(property)) return [{ name: name.text, action: property.initializer }];
    return compiler.isShorthandPropertyAssignment(property) ? [{ name: name.text, action: property.name }] : [];
  }

  /** `subgraphs` names the graph that a function calls. */
  function added(name: ts.Expression, action?: ts.Expression, options?: ts.Expression): SourceNode[] {
    const type = checker.getTypeAtLocation(name);
    if (action === undefined || !type.isStringLiteral()) return [];
    const named = options && bare(options);
    const subgraphs =
      named && compiler.isObjectLiteralExpression(named)
        ? named.properties.find((property) => property.name?.getText() === 'subgraphs')
        : undefined;
    const list = subgraphs && compiler.isPropertyAssignment(subgraphs) ? bare(subgraphs.initializer) : undefined;
    const graph = list && compiler.isArrayLiteralExpression(list) ? list.elements[0] : undefined;
    return [{ name: type.value, action: graph ?? action }];
  }

  function walked(begin: (walk: Walk) => void): SourceNode[] {
    const walk: Walk = { seen: new Set(), calls: new Set() };
    begin(walk);
    return [...walk.calls].flatMap(addedBy);
  }

  return {
    nodesOfExport: (exported) => walked((walk) => followSymbol(resolved(exported), walk)),
    nodesOf: (expression) => walked((walk) => follow(expression, walk)),
  };
}
