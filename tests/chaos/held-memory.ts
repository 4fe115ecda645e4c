/** What a server holds when the garbage is gone: unlike its resident size, the same on a busy machine and on a quiet one. */
import type { ChaosServer } from './stage.ts';

/** Collects the server's garbage, then reads its heap and what it holds outside of it (buffers), in MB. */
export async function heldMb(server: Pick<ChaosServer, 'url' | 'arm'>): Promise<number> {
  await server.arm([{ point: 'now', action: 'collect' }], 'memory');
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const bytes = (name: string): number => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1] ?? Number.NaN);
  return Math.round((bytes('nodejs_heap_size_used_bytes') + bytes('nodejs_external_memory_bytes')) / 1024 ** 2);
}
