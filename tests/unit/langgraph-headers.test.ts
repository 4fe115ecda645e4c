/** Which headers of its request a run is told of. */
import { expect, test } from 'vitest';
import { headersToldOf } from '#src/dialects/langgraph/headers.ts';

const headers = {
  authorization: 'Bearer secret',
  cookie: 'a=b',
  'x-api-key': 'secret',
  'x-forwarded-access-token': 'secret',
  'x-goog-iap-jwt-assertion': 'secret',
  'x-team': 'blue',
  'x-team-name': 'the blue',
  'user-agent': 'test',
  accept: '*/*',
  'set-cookie': ['never', 'told'],
};
const told = (includes: string[], excludes: string[] = []) =>
  Object.keys(headersToldOf(headers, { includes, excludes }));

test.each<[string, string[], string[], string[]]>([
  ['names', ['user-agent', 'none'], [], ['user-agent']],
  ['a beginning', ['x-*'], [], ['x-team', 'x-team-name']],
  ['an end', ['*-agent'], [], ['user-agent']],
  ['pieces in their order', ['x*m-*e', 'n*x*'], [], ['x-team-name']],
  ['ends that would overlap', ['x-team-name*name'], [], []],
  ['everything but credentials', ['*'], [], ['x-team', 'x-team-name', 'user-agent', 'accept']],
  ['a credential by its very name', ['x-api-key', 'author*'], [], ['x-api-key']],
  ['what is excluded, whatever is included', ['x-*', 'x-team'], ['x-team'], ['x-team-name']],
  ['nothing', ['*', 'x-api-key'], ['*'], []],
])('%s', (_name, includes, excludes, names) => {
  expect(told(includes, excludes)).toEqual(names);
});
