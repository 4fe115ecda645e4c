/** A module that fails while it is loaded. */
throw new Error('postgres://user:secret@db');

export const graph = null;
