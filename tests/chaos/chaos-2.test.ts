/** A share of the scenarios, with fixed seeds: @see README.md */
import { playShare } from './runner.ts';

await playShare(1);
