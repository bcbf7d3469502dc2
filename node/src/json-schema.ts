/**
 * Looks whether a value fits a JSON Schema (draft 2020-12, and the older names of what is in it).
 *
 * Keywords that are not checked here are refused when the schema is given, so that a value that passes does fit. References lead to
 * places within the schema.
 */

import { InvalidArgumentError } from "./errors";
import type { JsonSchema, Looked } from "./schema";

type Node = boolean | Readonly<Record<string, any>>;

/** Looks at one keyword: what is wrong with the value goes to `say`. */
type Keyword = (rule: any, value: any, look: Look, schema: Readonly<Record<string, any>>) => void;

/** What a keyword works with. */
interface Look {
  say(fault: string): void;
  /** Looks at a member or an element. */
  inside(part: string | number, schema: Node, value: unknown): void;
  /** Whether the value at hand fits another schema. */
  fits(schema: Node): boolean;
  /** Looks at the value at hand by another schema, too. */
  also(schema: Node): void;
  /** The schema that a reference leads to. */
  referred(pointer: string): Node;
}

/** More references in a row than this lead nowhere. */
const LONGEST_WAY = 64;

/** Keywords that say nothing that a value could break. */
const REMARKS = new Set([
  "title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
  "$schema", "$id", "$comment", "$defs", "definitions",
]);

/** Keywords whose value is a schema, an array of them, or an object of them: they are looked through for unknown ones. */
const SCHEMAS = new Set(["items", "additionalProperties", "propertyNames", "not", "if", "then", "else"]);
const SCHEMA_ARRAYS = new Set(["prefixItems", "anyOf", "oneOf", "allOf"]);
const SCHEMA_OBJECTS = new Set(["properties", "patternProperties", "$defs", "definitions"]);

/** A schema that is ready to be used. */
export class JsonChecker {
  readonly #root: Node;

  /** Throws InvalidArgumentError for a schema that holds what is not checked here. */
  constructor(schema: JsonSchema) {
    this.#root = schema as Node;
    this.#admit(this.#root, "");
  }

  /** The value, or what is wrong with it. */
  look(value: unknown): Looked {
    const faults: string[] = [];
    this.#look(this.#root, value, "", faults, 0);
    return faults.length === 0 ? { value } : { faults };
  }

  #look(schema: Node, value: unknown, place: string, faults: string[], way: number): void {
    const say = (fault: string): void => void faults.push(place === "" ? fault : `at \`${place}\`: ${fault}`);
    if (schema === true) return;
    if (schema === false) return say("nothing may be here");
    const look: Look = {
      say,
      inside: (part, inner, of) => this.#look(inner, of, `${place}/${escaped(String(part))}`, faults, 0),
      fits: (inner) => {
        const found: string[] = [];
        this.#look(inner, value, place, found, way);
        return found.length === 0;
      },
      also: (inner) => this.#look(inner, value, place, faults, way),
      referred: (pointer) => {
        if (way >= LONGEST_WAY) throw new InvalidArgumentError(`the schema of the output: the reference "${pointer}" leads in a circle`);
        return this.#referred(pointer);
      },
    };
    for (const [name, rule] of Object.entries(schema)) {
      if (name === "$ref") this.#look(look.referred(rule as string), value, place, faults, way + 1);
      else if (rule !== undefined) KEYWORDS.get(name)?.(rule, value, look, schema);
    }
  }

  #referred(pointer: string): Node {
    let found: any = this.#root;
    for (const part of pointer === "#" ? [] : pointer.slice(2).split("/")) {
      const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
      found = typeof found === "object" && found !== null && Object.hasOwn(found as object, name) ? found[name] : undefined;
    }
    return found as Node;
  }

  /** Refuses what is not checked here. */
  #admit(schema: Node, place: string): void {
    if (typeof schema === "boolean") return;
    const refuse = (what: string): never => {
      throw new InvalidArgumentError(`the schema of the output, at "${place}": ${what}`);
    };
    if (typeof schema !== "object" || schema === null || Array.isArray(schema)) refuse("a schema is an object, true or false");
    for (const [name, rule] of Object.entries(schema)) {
      if (rule === undefined) continue;
      if (SCHEMAS.has(name)) this.#admit(rule as Node, `${place}/${name}`);
      else if (SCHEMA_ARRAYS.has(name) || SCHEMA_OBJECTS.has(name)) {
        if (typeof rule !== "object" || rule === null || Array.isArray(rule) !== SCHEMA_ARRAYS.has(name)) refuse(`"${name}" does not hold schemas`);
        for (const [part, inner] of Object.entries(rule as object)) this.#admit(inner as Node, `${place}/${name}/${escaped(part)}`);
      }
      if (name === "$ref") this.#admitReference(rule, refuse);
      else if (name === "pattern") compiled(rule, refuse);
      else if (name === "patternProperties") for (const pattern of Object.keys(rule as object)) compiled(pattern, refuse);
      else if (!REMARKS.has(name) && !KEYWORDS.has(name)) {
        refuse(`the keyword "${name}" is not checked here; leave it out, or give a Standard Schema validator with this schema as outputSchema`);
      }
    }
  }

  #admitReference(rule: unknown, refuse: (what: string) => never): void {
    if (typeof rule !== "string" || !/^#(?:\/|$)/.test(rule)) refuse('a "$ref" leads to a place within the schema, such as "#/$defs/item"');
    let found: unknown;
    try {
      found = this.#referred(rule as string);
    } catch {
      found = undefined; // an escape that is none
    }
    if (typeof found !== "boolean" && (typeof found !== "object" || found === null)) refuse(`the "$ref" ${JSON.stringify(rule)} leads nowhere`);
  }
}

/** What each keyword asks for. Those that ask for a type of value say nothing of the others. */
const KEYWORDS = new Map<string, Keyword>(
  Object.entries({
    type: (rule, value, { say }) => {
      const types = Array.isArray(rule) ? (rule as string[]) : [rule as string];
      if (!types.some((type) => isOf(type, value))) say(`must be of the type ${types.join(" or ")}`);
    },
    const: (rule, value, { say }) => {
      if (!same(rule, value)) say(`must be ${canonical(rule)}`);
    },
    enum: (rule: unknown[], value, { say }) => {
      if (!rule.some((each) => same(each, value))) say(`must be one of ${rule.map(canonical).join(", ")}`);
    },
    anyOf: (rule: Node[], _, { fits, say }) => {
      if (!rule.some(fits)) say("fits none of the alternatives (anyOf)");
    },
    oneOf: (rule: Node[], _, { fits, say }) => {
      const fitting = rule.filter(fits).length;
      if (fitting !== 1) say(`must fit one of the alternatives (oneOf), and fits ${fitting}`);
    },
    allOf: (rule: Node[], _, { also }) => rule.forEach(also),
    not: (rule: Node, _, { fits, say }) => {
      if (fits(rule)) say("fits what it must not fit (not)");
    },
    if: (rule: Node, _, { fits, also }, { then, else: otherwise }) => {
      const next = (fits(rule) ? then : otherwise) as Node | undefined;
      if (next !== undefined) also(next);
    },
    then: () => {},
    else: () => {},

    minLength: (rule: number, value, { say }) => {
      if (typeof value === "string" && [...value].length < rule) say(`must have at least ${rule} characters`);
    },
    maxLength: (rule: number, value, { say }) => {
      if (typeof value === "string" && [...value].length > rule) say(`must have at most ${rule} characters`);
    },
    pattern: (rule: string, value, { say }) => {
      if (typeof value === "string" && !new RegExp(rule, "u").test(value)) say(`must match ${rule}`);
    },

    minimum: (rule: number, value, { say }) => {
      if (typeof value === "number" && value < rule) say(`must be at least ${rule}`);
    },
    maximum: (rule: number, value, { say }) => {
      if (typeof value === "number" && value > rule) say(`must be at most ${rule}`);
    },
    exclusiveMinimum: (rule: number, value, { say }) => {
      if (typeof value === "number" && value <= rule) say(`must be greater than ${rule}`);
    },
    exclusiveMaximum: (rule: number, value, { say }) => {
      if (typeof value === "number" && value >= rule) say(`must be less than ${rule}`);
    },
    multipleOf: (rule: number, value, { say }) => {
      if (typeof value === "number" && !isMultiple(value, rule)) say(`must be a multiple of ${rule}`);
    },

    prefixItems: (rule: Node[], value, { inside }) => {
      if (Array.isArray(value)) rule.slice(0, value.length).forEach((each, i) => inside(i, each, value[i]));
    },
    items: (rule: Node, value, { inside }, { prefixItems }) => {
      if (!Array.isArray(value)) return;
      for (let i = ((prefixItems as unknown[] | undefined) ?? []).length; i < value.length; i++) inside(i, rule, value[i]);
    },
    minItems: (rule: number, value, { say }) => {
      if (Array.isArray(value) && value.length < rule) say(`must have at least ${rule} elements`);
    },
    maxItems: (rule: number, value, { say }) => {
      if (Array.isArray(value) && value.length > rule) say(`must have at most ${rule} elements`);
    },
    uniqueItems: (rule: boolean, value, { say }) => {
      if (rule && Array.isArray(value) && new Set(value.map(canonical)).size < value.length) say("must not have two equal elements");
    },

    properties: (rule: Record<string, Node>, value, { inside }) => {
      if (!isObject(value)) return;
      for (const [name, each] of Object.entries(rule)) if (Object.hasOwn(value, name)) inside(name, each, value[name]);
    },
    required: (rule: string[], value, { say }) => {
      if (!isObject(value)) return;
      for (const name of rule) if (!Object.hasOwn(value, name)) say(`the member "${name}" is missing`);
    },
    patternProperties: (rule: Record<string, Node>, value, { inside }) => {
      if (!isObject(value)) return;
      for (const [pattern, each] of Object.entries(rule)) {
        const expression = new RegExp(pattern, "u");
        for (const [name, member] of Object.entries(value)) if (expression.test(name)) inside(name, each, member);
      }
    },
    additionalProperties: (rule: Node, value, { inside }, { properties = {}, patternProperties = {} }) => {
      if (!isObject(value)) return;
      const patterns = Object.keys(patternProperties as object).map((pattern) => new RegExp(pattern, "u"));
      for (const [name, member] of Object.entries(value)) {
        if (!Object.hasOwn(properties as object, name) && !patterns.some((pattern) => pattern.test(name))) inside(name, rule, member);
      }
    },
    propertyNames: (rule: Node, value, { inside }) => {
      if (isObject(value)) for (const name of Object.keys(value)) inside(name, rule, name);
    },
    minProperties: (rule: number, value, { say }) => {
      if (isObject(value) && Object.keys(value).length < rule) say(`must have at least ${rule} members`);
    },
    maxProperties: (rule: number, value, { say }) => {
      if (isObject(value) && Object.keys(value).length > rule) say(`must have at most ${rule} members`);
    },
  } satisfies Record<string, Keyword>),
);

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isOf(type: string, value: unknown): boolean {
  switch (type) {
    case "object":
      return isObject(value);
    case "array":
      return Array.isArray(value);
    case "integer":
      return Number.isInteger(value);
    case "null":
      return value === null;
    default:
      return typeof value === type;
  }
}

/** Whether one number is a multiple of another, as decimals: 0.3 is one of 0.1. */
function isMultiple(value: number, of: number): boolean {
  const times = value / of;
  return Math.abs(times - Math.round(times)) <= Number.EPSILON * Math.abs(times);
}

/** A value as text that is the same for equal values. */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_, member: unknown) =>
    isObject(member) ? Object.fromEntries(Object.entries(member).sort(([a], [b]) => (a < b ? -1 : 1))) : member,
  );
}

function same(a: unknown, b: unknown): boolean {
  return a === b || canonical(a) === canonical(b);
}

/** A member's name within a JSON pointer. */
function escaped(part: string): string {
  return part.replaceAll("~", "~0").replaceAll("/", "~1");
}

function compiled(pattern: unknown, refuse: (what: string) => never): void {
  try {
    new RegExp(pattern as string, "u");
  } catch {
    refuse(`the pattern ${JSON.stringify(pattern)} is no regular expression`);
  }
}
