/** How a request's body, query and path are read: strict UTF-8, JSON only, and no text that cannot be stored. */
import { isUtf8 } from 'node:buffer';
import type { FastifyInstance } from 'fastify';
import { RunledgerError } from '#src/errors.ts';
import { refuseBadText } from './text-check.ts';

/**
 * Replaces Fastify's parsers. No body at all is `undefined`, whatever the content type says, so a POST without arguments
 * needs no `{}`. Bytes that are no UTF-8 are refused: replacing them would store something else than was sent.
 */
export function registerBodyRules(app: FastifyInstance): void {
  const parseJson = app.getDefaultJsonParser('error', 'ignore');
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body: Buffer, done) => {
    if (body.length === 0) return done(null, undefined);
    if (!isUtf8(body)) {
      return done(new RunledgerError('INVALID_CHARACTER', 'The body is not valid UTF-8.', { path: 'body' }), undefined);
    }
    return parseJson(request, body.toString('utf8'), done);
  });
  app.addHook('preValidation', async (request) => {
    refuseBadText(request.params);
    refuseBadText(request.query);
    refuseBadText(request.body);
  });
}
