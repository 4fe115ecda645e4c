/** Reads the stamps of the bench's model out of what arrived. */

/** Now, in µs of the clock the stamps are made with. */
export function nowUs(): number {
  return Number(process.hrtime.bigint() / 1000n);
}

/** Feed it text as it arrives; it collects the delay of every token, in ms, in order. */
export function createStampReader(): { read(text: string): void; readonly delaysMs: number[] } {
  const delaysMs: number[] = [];
  let rest = '';
  return {
    delaysMs,
    read(text) {
      const atUs = nowUs();
      rest += text;
      let end = 0;
      for (const match of rest.matchAll(/t(\d{6,}) /g)) {
        delaysMs.push((atUs - Number(match[1])) / 1000);
        end = match.index + match[0].length;
      }
      rest = rest.slice(end);
    },
  };
}
