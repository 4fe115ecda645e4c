import { createHash } from 'node:crypto';

/** RFC 4122's namespace for object identifiers; with it every server gives a graph's own assistant the same id. */
const NAMESPACE = Buffer.from('6ba7b8219dad11d180b400c04fd430c8', 'hex');

/** The id of the assistant the server makes for a graph: UUID version 5 of the graph's id. */
export function systemAssistantId(graphId: string): string {
  const hash = createHash('sha1').update(NAMESPACE).update(graphId).digest().subarray(0, 16);
  hash.writeUInt8((hash.readUInt8(6) & 0x0f) | 0x50, 6);
  hash.writeUInt8((hash.readUInt8(8) & 0x3f) | 0x80, 8);
  return hash.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
