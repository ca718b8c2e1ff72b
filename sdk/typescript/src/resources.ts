import { type Content, lines } from "./bytes.ts";
import { type ClientCallOptions, clientOf } from "./client.ts";
import { StreamInterrupted, apiError } from "./errors.ts";
import { LONG_SECONDS, segment } from "./http.ts";
import { type Camel, type Input, fromWire } from "./names.ts";
import { parse } from "./output.ts";
import { type CreateOptions, Sandbox, type SandboxSettings, type SnapshotInfo, settingsOf, spawn } from "./sandbox.ts";
import type * as wire from "./wire.ts";

/** Settings of sandboxes under a name. */
export type TemplateInfo = Camel<wire.Template>;
/** An image of the server's store. */
export type ImageInfo = Camel<wire.Image>;
export type ImageDetail = Camel<wire.ImageDetail>;
/** Progress of a pull. */
export type PullProgress = Exclude<Camel<wire.PullProgress>, { type: "error" | "done" }>;
/** A secret, without its value. */
export type SecretInfo = Camel<wire.Secret>;
/** A key of an owner, without its secret. */
export type KeyInfo = Camel<wire.OwnerKey>;

/** A template to change or delete: an operator may name the owner that has it. */
export type TemplateOptions = ClientCallOptions & { ownerId?: string | undefined };

function templatePath(name: string, rest = ""): string {
  return `/templates/${segment(name, "template name")}${rest}`;
}

/** Settings of sandboxes, kept under a name. */
export class Template {
  /** Class of the sandboxes that `spawn` returns. */
  protected static readonly sandbox: typeof Sandbox = Sandbox;

  /** Creates a template. */
  static create(name: string, settings: SandboxSettings & ClientCallOptions = {}): Promise<TemplateInfo> {
    const json = { name, ...settingsOf(settings) };
    return clientOf(settings).transport.call({ method: "POST", path: "/templates", json, options: settings });
  }

  /** Returns a template. */
  static get(name: string, options: TemplateOptions = {}): Promise<TemplateInfo> {
    const query = { owner_id: options.ownerId };
    return clientOf(options).transport.call({ path: templatePath(name), query, options });
  }

  /** Lists the templates. */
  static list(options: TemplateOptions = {}): Promise<TemplateInfo[]> {
    const query = { owner_id: options.ownerId };
    return clientOf(options).transport.call({ path: "/templates", query, options });
  }

  /** Replaces the settings of a template; absent settings are cleared. */
  static update(name: string, settings: SandboxSettings & TemplateOptions = {}): Promise<TemplateInfo> {
    const { ownerId, ...rest } = settings;
    const request = { query: { owner_id: ownerId }, json: settingsOf(rest), options: settings };
    return clientOf(settings).transport.call({ method: "PUT", path: templatePath(name), ...request });
  }

  /** Deletes a template; sandboxes made from it stay. */
  static async delete(name: string, options: TemplateOptions = {}): Promise<void> {
    const query = { owner_id: options.ownerId };
    await clientOf(options).transport.call({ method: "DELETE", path: templatePath(name), query, options });
  }

  /** Creates a sandbox from a template; settings override the template's. */
  static spawn(name: string, options: Omit<CreateOptions, "template" | "image" | "snapshot"> = {}): Promise<Sandbox> {
    return spawn(this.sandbox, templatePath(name, "/spawn"), options);
  }
}

function imagePath(name: string): string {
  return `/images/${segment(name, "image name")}`;
}

/** Seconds that a pull without reported progress may take. */
const PULL_SECONDS = 3600;

/** Images of the server's store. */
export class Image {
  /** Lists the images. */
  static list(options?: ClientCallOptions): Promise<ImageInfo[]> {
    return clientOf(options).transport.call({ path: "/images", options });
  }

  /** Returns an image, by a name or digest. */
  static get(name: string, options?: ClientCallOptions): Promise<ImageDetail> {
    return clientOf(options).transport.call({ path: imagePath(name), options });
  }

  /** Pulls an image from its registry. */
  static async pull(
    name: string,
    options: ClientCallOptions & { onProgress?: ((progress: PullProgress) => unknown) | undefined } = {},
  ): Promise<ImageInfo> {
    const json = { name, stream: true };
    const answer = await clientOf(options).transport.open(
      { method: "POST", path: "/images/pull", json, options, timeout: LONG_SECONDS },
      "application/x-ndjson",
    );
    for await (const line of lines(answer.stream(), answer.url)) {
      if (line.trim() === "") continue;
      const progress = fromWire(parse(line, answer.url)) as Camel<wire.PullProgress>;
      if (progress.type === "done") return progress.image;
      if (progress.type === "error") throw apiError(progress.message, { code: progress.code });
      await options.onProgress?.(progress);
    }
    throw new StreamInterrupted("the pull continues, but its outcome is unknown; ask with `Image.get`");
  }

  /** Imports an archive: of `docker save`, an OCI layout, or of a root file system with a `name`. */
  static import(content: Content, options: ClientCallOptions & { name?: string } = {}): Promise<ImageInfo[]> {
    const request = { query: { name: options.name }, content, options, timeout: PULL_SECONDS };
    return clientOf(options).transport.call({ method: "POST", path: "/images/import", ...request });
  }

  /** Removes an image from the store. */
  static async delete(name: string, options?: ClientCallOptions): Promise<void> {
    await clientOf(options).transport.call({ method: "DELETE", path: imagePath(name), options });
  }

  /** Removes images without a name, and with `all` all unused images. */
  static prune(options: ClientCallOptions & { all?: boolean } = {}): Promise<Camel<wire.PrunedImages>> {
    const json = { all: options.all };
    return clientOf(options).transport.call({ method: "POST", path: "/images/prune", json, options });
  }
}

/** Snapshots, which {@link Sandbox.create} starts from. */
export class Snapshot {
  /** Lists the snapshots. */
  static list(options: ClientCallOptions & { ownerId?: string; sandboxId?: string } = {}): Promise<SnapshotInfo[]> {
    const query = { owner_id: options.ownerId, sandbox_id: options.sandboxId };
    return clientOf(options).transport.call({ path: "/snapshots", query, options });
  }

  /** Returns a snapshot. */
  static get(id: string, options?: ClientCallOptions): Promise<SnapshotInfo> {
    return clientOf(options).transport.call({ path: `/snapshots/${segment(id, "snapshot ID")}`, options });
  }

  /** Deletes a snapshot; sandboxes made from it stay. */
  static async delete(id: string, options?: ClientCallOptions): Promise<void> {
    const path = `/snapshots/${segment(id, "snapshot ID")}`;
    await clientOf(options).transport.call({ method: "DELETE", path, options });
  }
}

/** Hosts of a secret, and the form in which the server adds it to their requests. */
export type SecretSettings = Omit<Input<wire.SecretRequest>, "value">;

/** Keys that stay in the server. */
export class Secret {
  /** Stores or replaces a secret. Without `hosts` it is for `envSecret` of commands. */
  static set(name: string, value: string, settings: SecretSettings & ClientCallOptions = {}): Promise<SecretInfo> {
    const { hosts, header, form, owners } = settings as Record<string, unknown>;
    const json = { value, hosts, header, form, owners };
    return clientOf(settings).transport.call({ method: "PUT", path: secretPath(name), json, options: settings });
  }

  /** Describes a secret, without its value. */
  static get(name: string, options?: ClientCallOptions): Promise<SecretInfo> {
    return clientOf(options).transport.call({ path: secretPath(name), options });
  }

  /** Lists the secrets, without their values. */
  static list(options?: ClientCallOptions): Promise<SecretInfo[]> {
    return clientOf(options).transport.call({ path: "/secrets", options });
  }

  /** Deletes a secret. */
  static async delete(name: string, options?: ClientCallOptions): Promise<void> {
    await clientOf(options).transport.call({ method: "DELETE", path: secretPath(name), options });
  }
}

function secretPath(name: string): string {
  return `/secrets/${segment(name, "secret name")}`;
}

/** Options of {@link Key.create}. */
export type KeyOptions = ClientCallOptions & Omit<Input<wire.OwnerKeyRequest>, "ownerId">;

/** Keys of owners. */
export class Key {
  /** Creates a key of an owner; `secret` in the answer is not shown again. */
  static create(ownerId: string, options: KeyOptions = {}): Promise<Camel<wire.CreatedOwnerKey>> {
    const { name, scopes, ttl, format } = options;
    const json = { ownerId, name, scopes, ttl, format };
    return clientOf(options).transport.call({ method: "POST", path: "/admin/keys", json, options });
  }

  /** Lists the keys, of one owner or of all. */
  static list(options: ClientCallOptions & { ownerId?: string } = {}): Promise<KeyInfo[]> {
    const query = { owner_id: options.ownerId };
    return clientOf(options).transport.call({ path: "/admin/keys", query, options });
  }

  /** Revokes a key, by its ID. */
  static async revoke(id: string, options?: ClientCallOptions): Promise<void> {
    const path = `/admin/keys/${segment(id, "key ID")}`;
    await clientOf(options).transport.call({ method: "DELETE", path, options });
  }
}
