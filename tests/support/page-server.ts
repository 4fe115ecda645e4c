/** The chat page, bundled with a version of LangGraph's client, on a port (and so an origin) of its own. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const PAGE = fileURLToPath(new URL('./page/page.tsx', import.meta.url));
const SDK = /^@langchain\/langgraph-sdk(?=\/|$)/;

export interface PageServer {
  /** What a browser calls the origin of its pages. */
  readonly origin: string;
  /** The address of the page with the client that the package `sdk` is. */
  addressOf(sdk: string): string;
  stop(): Promise<void>;
}

/** @param sdks names of packages, each a version of `@langchain/langgraph-sdk`; there is a page for each */
export async function startPageServer(sdks: readonly string[]): Promise<PageServer> {
  const scripts = new Map<string, string>();
  for (const sdk of sdks) scripts.set(`/${encodeURIComponent(sdk)}`, await bundled(sdk));

  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://page');
    const script = scripts.get(pathname.replace(/\.js$/, ''));
    if (script === undefined) {
      response.writeHead(404).end();
    } else if (pathname.endsWith('.js')) {
      response.writeHead(200, { 'content-type': 'text/javascript; charset=utf-8', 'cache-control': 'max-age=3600' });
      response.end(script);
    } else {
      response.writeHead(200, { 'content-type': 'text/html; charset=utf-8' });
      response.end(
        `<!doctype html><link rel="icon" href="data:,"><div id="root"></div><script type="module" src="${pathname}.js"></script>`,
      );
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    origin,
    addressOf: (sdk) => `${origin}/${encodeURIComponent(sdk)}`,
    async stop() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** One script with everything that the page needs. */
async function bundled(sdk: string): Promise<string> {
  const built = await build({
    configFile: false,
    logLevel: 'error',
    oxc: { jsx: { runtime: 'automatic', development: false } },
    define: { 'process.env.NODE_ENV': '"production"' },
    resolve: { alias: [{ find: SDK, replacement: sdk }], dedupe: ['react', 'react-dom', '@langchain/core'] },
    build: {
      write: false,
      minify: false,
      rolldownOptions: { input: PAGE, output: { codeSplitting: false } },
    },
  });
  const [bundle] = Array.isArray(built) ? built : [built];
  if (bundle === undefined || !('output' in bundle)) throw new Error('the page was not bundled');
  const [script, second] = bundle.output.filter((output) => output.type === 'chunk');
  if (script === undefined || second !== undefined) throw new Error('the page is not one script');
  return script.code;
}
