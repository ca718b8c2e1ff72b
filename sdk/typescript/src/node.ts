/**
 * All of `tidebox`, and what needs Node.js, Deno or Bun: local files and local ports.
 *
 * @module
 */

import type { Target } from "./commands.ts";
import { Forward, type ForwardOptions, forward } from "./node/forward.ts";
import { LocalFiles } from "./node/files.ts";
import { Sandbox as BaseSandbox } from "./sandbox.ts";
import { type CreateOptions } from "./sandbox.ts";
import { Template as BaseTemplate } from "./resources.ts";

export * from "./index.ts";
export { Forward } from "./node/forward.ts";
export type { ForwardOptions } from "./node/forward.ts";
export { LocalFiles } from "./node/files.ts";
export type { SyncOptions } from "./node/files.ts";
export type { SyncResult } from "./node/sync.ts";

/** A sandbox that also copies local files and forwards local ports. */
export class Sandbox extends BaseSandbox {
  declare readonly files: LocalFiles;

  protected override makeFiles(target: Target): LocalFiles {
    return new LocalFiles(target);
  }

  /** Listens on this machine; each connection leads to a port of the sandbox. */
  forward(port: number, options: ForwardOptions = {}): Promise<Forward> {
    return forward(this.target, port, options);
  }
}

/** Settings of sandboxes, kept under a name. */
export class Template extends BaseTemplate {
  protected static override readonly sandbox: typeof Sandbox = Sandbox;

  /** Creates a sandbox from a template; settings override the template's. */
  static override spawn(
    name: string,
    options: Omit<CreateOptions, "template" | "image" | "snapshot"> = {},
  ): Promise<Sandbox> {
    return super.spawn(name, options) as Promise<Sandbox>;
  }
}
