/** Which IP addresses are on the public internet, and may be sent to by somebody who only knows this server. */
import { BlockList, isIP } from 'node:net';

/** IANA's special-purpose registry, as far as it is not globally reachable; multicast and reserved space. */
const NOT_PUBLIC_V4: [string, number][] = [
  ['0.0.0.0', 8], // "this network", the unspecified address
  ['10.0.0.0', 8],
  ['100.64.0.0', 10], // carrier-grade NAT
  ['127.0.0.0', 8],
  ['169.254.0.0', 16], // link-local; cloud metadata services
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24], // documentation
  ['192.88.99.0', 24], // 6to4 relays
  ['192.168.0.0', 16],
  ['198.18.0.0', 15], // benchmarks
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4], // multicast
  ['240.0.0.0', 4], // reserved, broadcast
];
/** Only 2000::/3 is global unicast. What lies outside it (loopback, IPv4-mapped, link-local, multicast, ...) is refused as a whole. */
const GLOBAL_V6: [string, number] = ['2000::', 3];
const NOT_PUBLIC_V6: [string, number][] = [
  ['2001::', 23], // protocol assignments, Teredo among them, which carries IPv4 addresses
  ['2001:db8::', 32], // documentation
  ['2002::', 16], // 6to4, carries IPv4 addresses
  ['3fff::', 20], // documentation
];

const refused = new BlockList();
for (const [net, bits] of NOT_PUBLIC_V4) refused.addSubnet(net, bits, 'ipv4');
for (const [net, bits] of NOT_PUBLIC_V6) refused.addSubnet(net, bits, 'ipv6');
const global = new BlockList();
global.addSubnet(...GLOBAL_V6, 'ipv6');

/** @param address in the usual notation, as look-ups and `URL` give it, without brackets; anything else is not public */
export function isPublicAddress(address: string): boolean {
  switch (isIP(address)) {
    case 4:
      return !refused.check(address, 'ipv4');
    case 6:
      return !address.includes('%') && global.check(address, 'ipv6') && !refused.check(address, 'ipv6');
    default:
      return false;
  }
}
