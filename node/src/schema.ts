/** Schemas of what models write: what they look like, the types that follow from them, and validators. */

import { BrocaError, InvalidArgumentError } from "./errors";

/** A JSON Schema of an object. */
export interface JsonSchema {
  readonly type?: unknown;
  readonly properties?: { readonly [name: string]: unknown };
  readonly required?: readonly string[];
  readonly [keyword: string]: unknown;
}

/** What a Standard Schema validator (zod, valibot, arktype …) looks like: https://standardschema.dev */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown, ...more: any[]) => StandardResult<Output> | Promise<StandardResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
    /** Newer validators also write their JSON Schema. */
    readonly jsonSchema?: { readonly input: (options: any) => Record<string, unknown> } | undefined;
  };
}

/** What a validation comes to. */
export type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] };

/** The type that a literal JSON Schema describes; `any` for keywords that types cannot follow. */
export type FromSchema<S> = S extends { readonly const: infer C }
  ? C
  : S extends { readonly enum: readonly (infer E)[] }
    ? E
    : S extends { readonly type: "string" }
      ? string
      : S extends { readonly type: "number" | "integer" }
        ? number
        : S extends { readonly type: "boolean" }
          ? boolean
          : S extends { readonly type: "null" }
            ? null
            : S extends { readonly type: "array"; readonly items: infer I }
              ? FromSchema<I>[]
              : S extends { readonly type: "object"; readonly properties: infer P }
                ? Flat<
                    { -readonly [K in keyof P as K extends Required<S> ? K : never]: FromSchema<P[K]> } & {
                      -readonly [K in keyof P as K extends Required<S> ? never : K]?: FromSchema<P[K]>;
                    }
                  >
                : S extends { readonly type: "object" }
                  ? Record<string, any>
                  : any;

type Required<S> = S extends { readonly required: readonly (infer R)[] } ? R : never;
type Flat<T> = { [K in keyof T]: T[K] };

/** The value that a schema describes: the arguments of a tool, or a typed output. */
export type ArgumentsOf<S> =
  S extends { readonly "~standard": { readonly types?: { readonly output: infer O } | undefined } } ? O : FromSchema<S>;

/** What a value came to that was looked at: the value, perhaps changed by its validator, or what is wrong with it. */
export type Looked = { value: unknown; faults?: undefined } | { faults: string[] };

/** Has a validator look at a value. Rejects with what the validator itself throws. */
export async function validate(validator: StandardSchema, value: unknown): Promise<Looked> {
  const result = await validator["~standard"].validate(value);
  if (result.issues === undefined) return { value: result.value };
  const faults = result.issues.map(({ message, path }) => {
    const place = (path ?? []).map((part) => String(typeof part === "object" && part !== null && "key" in part ? part.key : part));
    return place.length === 0 ? message : `at \`${place.join(".")}\`: ${message}`;
  });
  return { faults };
}

export function isValidator(input: JsonSchema | StandardSchema | undefined): input is StandardSchema {
  return (typeof input === "object" || typeof input === "function") && input !== null && "~standard" in input;
}

/** The JSON Schema that a validator writes; `beside` is the option that can hold one instead. */
export function written(validator: StandardSchema, whose: string, beside: string): JsonSchema {
  const { jsonSchema, vendor } = validator["~standard"];
  if (jsonSchema === undefined) {
    throw new InvalidArgumentError(
      `${whose}: this version of ${vendor} cannot write a JSON Schema of its validator; give one as ${beside} beside it`,
    );
  }
  try {
    return jsonSchema.input({ target: "draft-2020-12" }) as JsonSchema;
  } catch (cause) {
    if (cause instanceof BrocaError) throw cause;
    throw new InvalidArgumentError(`${whose}: ${vendor} cannot write a JSON Schema of its validator; give one as ${beside} beside it`, { cause });
  }
}
