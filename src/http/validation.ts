/** zod for Fastify: a request part that does not fit its schema becomes a refusal that names the field. */
import type { FastifySchemaCompiler } from 'fastify';
import type { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';

/** Parses one part of a request. A failure is INVALID_REQUEST with the dotted path of the first field that is wrong. */
export const validatorCompiler: FastifySchemaCompiler<z.ZodType> = ({ schema, httpPart }) => {
  return (data) => {
    // Fastify says null for a body that is not there.
    const result = schema.safeParse(httpPart === 'body' ? (data ?? undefined) : data);
    if (result.success) return { value: result.data };
    return { error: refusalOf(result.error, httpPart === 'querystring' ? 'query' : (httpPart ?? 'request')) };
  };
};

function refusalOf(error: z.ZodError, part: string): RunledgerError {
  const issue = deepest(error.issues);
  const keys = issue.code === 'unrecognized_keys' ? issue.keys.slice(0, 1) : [];
  const path = [...issue.path, ...keys].map(String).join('.');
  return new RunledgerError('INVALID_REQUEST', issue.message, { path: path === '' ? part : path });
}

/** In a union, the branch that got furthest is the one the client meant. */
function deepest(issues: readonly z.core.$ZodIssue[]): z.core.$ZodIssue {
  const [first] = issues;
  if (first === undefined) throw new TypeError('a failed parse without an issue');
  if (first.code !== 'invalid_union') return first;
  const inner = first.errors
    .filter((branch) => branch.length > 0)
    .map((branch) => deepest(branch))
    .sort((a, b) => b.path.length - a.path.length)[0];
  if (inner === undefined || inner.path.length === 0) return first;
  return { ...inner, path: [...first.path, ...inner.path] };
}
