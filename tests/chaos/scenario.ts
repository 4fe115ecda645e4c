/** What a scenario is. One file per row of the fault matrix under scenarios/, exporting `scenario`. */
import type { StageOptions } from './stage.ts';
import type { World } from './world.ts';

export interface Scenario {
  /** Of the fault matrix. */
  row: number;
  name: string;
  /** What holds, for the table in docs/faults.md: beside the invariants, which hold everywhere. */
  asserts: string;
  /** What it plays on; scenarios with the same options share a stage. */
  stage?: StageOptions;
  /** Its seeds run at the same time on one stage: for long faults. What is measured of the stage is then measured once. */
  together?: boolean;
  /** Seconds that three seeds take, for spreading the scenarios over the test files; 20 by default. */
  weightS?: number;
  /** @throws when an expectation of its own is violated; the checker follows it. */
  run(world: World): Promise<void>;
}
