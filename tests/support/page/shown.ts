/** What the page shows, as its tests see it. */
export interface Shown {
  /** `type: text` of each message. */
  messages: string[];
  /** For each message `1/2` where branches begin with it, else nothing. */
  branches: string[];
  /** `busy` or `idle`. */
  state: string | null;
  /** Empty when there is none. */
  error: string | null;
  /** How many states of the thread it knows: the length of `history`. */
  states: number;
  /** What a person is asked; null when nobody is. */
  question: string | null;
}

declare global {
  var shown: () => Shown;
  /** The messages of each render since the page was loaded. */
  var renders: string[][];
}
