/** Shows the runs of any process to the viewers of this one. */
import type { Logger } from 'pino';
import { accept, type Channel, createChannel } from './channel.ts';
import { closeChannel, openChannel } from './channel-watch.ts';
import type { Hub } from './hub.ts';
import type { EventLog } from './log.ts';
import { createViewer } from './viewer.ts';

const TAIL_CHECK_MS = 1_500;

/**
 * @param deps.tailCheckMs how often the end of a watched run's log is looked at, in case its last publication was lost
 */
export function createHub(deps: { log: EventLog; logger: Logger; tailCheckMs?: number }): Hub {
  const { log, logger } = deps;
  const tailCheckMs = deps.tailCheckMs ?? TAIL_CHECK_MS;
  const channels = new Map<string, { channel: Channel; opened: Promise<void> }>();
  let viewers = 0;
  let closed = false;

  function leave(channel: Channel): void {
    viewers -= 1;
    channel.viewers -= 1;
    if (channel.viewers > 0 || channel.closed) return;
    closeChannel(channel);
    channels.delete(channel.runId);
  }

  function open(runId: string): { channel: Channel; opened: Promise<void> } {
    const channel = createChannel({ runId, log, logger });
    channel.closed = closed;
    const watched = { channel, opened: closed ? Promise.resolve() : openChannel(channel, tailCheckMs) };
    if (!closed) channels.set(runId, watched);
    return watched;
  }

  return {
    deliver(runId, entries) {
      const watched = channels.get(runId);
      if (watched === undefined) return;
      for (const entry of entries) accept(watched.channel, entry, 'delivered');
    },
    async attach(runId, after, options = {}) {
      const watched = channels.get(runId) ?? open(runId);
      const { channel } = watched;
      channel.viewers += 1;
      viewers += 1;
      channel.asked = Math.max(channel.asked, after);
      channel.floorEpoch = Math.max(channel.floorEpoch, options.floorEpoch ?? 0);
      await watched.opened;
      return createViewer(channel, after, () => leave(channel));
    },
    get watched() {
      return channels.size;
    },
    get viewers() {
      return viewers;
    },
    async close() {
      closed = true;
      for (const { channel } of channels.values()) closeChannel(channel);
      channels.clear();
    },
  };
}
