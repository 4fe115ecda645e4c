/** Components of a project, for chat pages that show what its graphs push as `ui` messages (`LoadExternalComponent`). */
import { extname } from 'node:path';
import { z } from 'zod';
import { RunledgerError } from '#src/errors.ts';
import { authHook } from '#src/http/auth.ts';
import { type LangGraphApp, type LangGraphDeps, param, parsed } from './route.ts';

const TYPES: { readonly [extension: string]: string } = {
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.map': 'application/json; charset=utf-8',
};
const componentBody = z.object({ name: z.string() });

export function addUiRoutes(app: LangGraphApp, { components, authenticate }: LangGraphDeps): void {
  if (components === null) return;
  const filesOf = (graph: string) => {
    const files = components.get(graph);
    if (files !== undefined) return files;
    throw missing(`UI not found for agent "${graph}"`);
  };

  // What a page puts into itself to have the component shown: its styles, and the script that shows it.
  app.post('/ui/:agent', { onRequest: authHook(authenticate) }, async (request, reply) => {
    const agent = param(request, 'agent');
    const { name } = parsed(componentBody, request.body);
    const names = [...filesOf(agent).keys()];
    // Elsewhere the page's own scheme is the right one.
    const scheme = /^(?:localhost|127\.0\.0\.1)(?::\d+)?$/.test(request.host) ? 'http:' : '';
    const address = (file: string) => attribute(`${scheme}//${request.host}/ui/${encodeURIComponent(agent)}/${file}`);
    const styles = names
      .filter((file) => extname(file) === '.css')
      .map((file) => `<link rel="stylesheet" href="${address(file)}" />`);
    // The global that the bundler gives to a bundle of this name.
    const global = `__LGUI_${agent.replace(/[^a-zA-Z0-9]/g, '_')}`;
    const shown = `${global}.render(${inSingleQuotes(JSON.stringify(name))}, "{{shadowRootId}}")`;
    const scripts = names
      .filter((file) => extname(file) === '.js')
      .slice(0, 1)
      .map((file) => `<script src="${address(file)}" onload='${shown}'></script>`);
    return reply.type('text/html; charset=utf-8').send([...styles, ...scripts].join('\n'));
  });

  // For everybody: browsers load scripts and styles without credentials.
  app.get('/ui/:agent/:basename', async (request, reply) => {
    const basename = param(request, 'basename');
    const file = components.get(param(request, 'agent'))?.get(basename);
    if (file === undefined) throw missing('File not found');
    return reply.type(TYPES[extname(basename)] ?? 'application/octet-stream').send(Buffer.from(file));
  });
}

function missing(text: string): RunledgerError {
  return new RunledgerError('NOT_FOUND', text, { details: { form: { status: 404, text } } });
}

function attribute(text: string): string {
  return inSingleQuotes(text).replaceAll('"', '&quot;');
}

/** Text as it stands in an attribute in single quotes: the quotes of JavaScript in it stay as they are. */
function inSingleQuotes(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll("'", '&#39;');
}
