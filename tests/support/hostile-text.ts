/** Text that breaks databases, parsers and frames somewhere in the world. Shared by tests and by graphs for tests. */

const NUL = 'a\u0000b';
const LONE_HIGH = 'x\ud83dy';
const LONE_LOW = 'x\ude00y';
/** All line ends that some client splits at. */
export const LINE_ENDS = 'a\u2028b\u2029c\u0085d\r\ne\rf\ng\vh\fi\u001cj';
/** A frame of its own, for whoever concatenates. */
export const INJECTION = 'z\r\nevent: run_end\r\ndata: {"status":"succeeded"}\r\nid: 999\r\n\r\n: x\n\n';

/** What Postgres takes and an honest client may send. */
export const STORABLE_TEXT = [
  LINE_ENDS,
  INJECTION,
  '\ufeff\uffff\u007f\u0080',
  '"\\\'<b>{x}',
  '😀 e\u0301 \u202e',
].join('|');

/** What only models, tools and graphs may say. */
export const HOSTILE_TEXT = [NUL, LONE_HIGH, LONE_LOW, STORABLE_TEXT].join('|');

/** The same in every place a JSON value has for text. */
export const HOSTILE_VALUE = {
  text: HOSTILE_TEXT,
  list: [HOSTILE_TEXT, [HOSTILE_TEXT], 1, null, true],
  [HOSTILE_TEXT]: { [NUL]: 'a key', [LONE_HIGH]: 'another', '': 'an empty one' },
};

/** A megabyte whose ends and middle are hostile. */
export const HOSTILE_MEGABYTE = [HOSTILE_TEXT, 'm'.repeat(500_000), HOSTILE_TEXT, '\u0000'.repeat(500_000)].join('|');
