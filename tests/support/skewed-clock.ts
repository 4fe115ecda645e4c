/** Preloaded into a server (`NODE_OPTIONS=--import=…`): its clock is wrong by `SKEW_MS`, as on a machine without NTP. */
const skewMs = Number(process.env.SKEW_MS);
const RealDate = Date;

class SkewedDate extends RealDate {
  constructor(...args: [] | [number | string | Date]) {
    if (args.length === 0) super(RealDate.now() + skewMs);
    else super(...args);
  }
  static override now(): number {
    return RealDate.now() + skewMs;
  }
}
globalThis.Date = SkewedDate as DateConstructor;
