/** LangGraph's own client in the versions that the tests speak with. */
import { Client } from '@langchain/langgraph-sdk';
import { Client as OlderClient } from 'sdk-1.9.31';

export interface Sdk {
  /** Of the package in node_modules. */
  readonly name: string;
  readonly Client: typeof Client;
}

/** The newest first. Where the older one has a method, it is called in the same way. */
export const SDKS: readonly [Sdk, Sdk] = [
  { name: '@langchain/langgraph-sdk', Client },
  { name: 'sdk-1.9.31', Client: OlderClient as unknown as typeof Client },
];
