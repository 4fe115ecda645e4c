/** Deadlines for one Redis connection. A stopped Redis, or a cable pulled, gives silence and no error. */

/** Redis did not answer in time, is not connected, or refused. The cause is for the server's own log. */
export class RedisUnavailable extends Error {
  override readonly name = 'RedisUnavailable';
}

export interface Deadline {
  /**
   * Runs `work` and rejects when it has not settled after `deadlineMs`. While one piece of work is overdue, others are
   * refused at once: their commands would only queue up behind it, on the same connection.
   * @throws RedisUnavailable for lateness; what `work` throws otherwise
   */
  within<T>(deadlineMs: number, work: () => Promise<T>): Promise<T>;
}

/** One per connection. */
export function createDeadline(): Deadline {
  let overdue = 0;
  return {
    within(deadlineMs, work) {
      if (overdue > 0) return Promise.reject(new RedisUnavailable('Redis has not answered an earlier command'));
      return new Promise((resolve, reject) => {
        let state: 'waiting' | 'overdue' | 'settled' = 'waiting';
        const timer = setTimeout(() => {
          // After a blocked event loop timers run first: an answer that already lies in the socket is read before this.
          setImmediate(() => {
            if (state !== 'waiting') return;
            state = 'overdue';
            overdue += 1;
            reject(new RedisUnavailable(`no answer from Redis within ${deadlineMs} ms`));
          });
        }, deadlineMs);
        const settle = (): void => {
          clearTimeout(timer);
          if (state === 'overdue') overdue -= 1;
          state = 'settled';
        };
        work().then(
          (value) => {
            settle();
            resolve(value);
          },
          (error: unknown) => {
            settle();
            reject(error);
          },
        );
      });
    },
  };
}
