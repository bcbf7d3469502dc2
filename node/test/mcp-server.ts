/** An MCP server for the tests, over its standard streams: `node mcp-server.js [NOTES]`, or over HTTP: `node mcp-server.js http`. */

import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { CallToolRequestSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const notes = process.argv[2] === "http" ? undefined : process.argv[2];
const note = (words: string): void => void (notes !== undefined && appendFileSync(notes, `${words}\n`));
const object = { type: "object" as const, properties: {} };
const text = { type: "object" as const, properties: { text: { type: "string" } }, required: ["text"] };
const tools: { name: string; description: string; inputSchema: typeof object; annotations?: object }[] = [
  { name: "echo", description: "Says it again.", inputSchema: text, annotations: { readOnlyHint: true } },
  { name: "fail", description: "Fails.", inputSchema: object },
  { name: "draw", description: "Draws a picture.", inputSchema: object },
  { name: "count", description: "Counts, as data only.", inputSchema: object },
  { name: "sleep", description: "Sleeps until it is told to stop.", inputSchema: object },
  { name: "die", description: "Ends the server.", inputSchema: object },
  { name: "grow", description: "Gets one more tool.", inputSchema: object },
  { name: "environment", description: "Names its variables.", inputSchema: object },
];

function made(): Server {
  const server = new Server({ name: "test", version: "1" }, { capabilities: { tools: { listChanged: true } } });
  const said = (words: string, more: object = {}): object => ({ content: [{ type: "text", text: words }], ...more });
  server.setRequestHandler(ListToolsRequestSchema, ({ params }) =>
    params?.cursor === undefined ? { tools: tools.slice(0, 5), nextCursor: "more" } : { tools: tools.slice(5) },
  );
  server.setRequestHandler(CallToolRequestSchema, async ({ params: { name, arguments: given } }, { signal }) => {
    note(`call ${name}`);
    switch (name) {
      case "echo":
        return said(`echo: ${given?.["text"]}`) as { content: [] };
      case "fail":
        return said("it did not work", { isError: true }) as { content: [] };
      case "draw":
        return { content: [{ type: "text", text: "a cat" }, { type: "image", data: "iVBORw0KGgo=", mimeType: "image/png" }] };
      case "count":
        return { content: [], structuredContent: { count: 3 } };
      case "sleep":
        await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        note("sleep was told to stop");
        return said("slept") as { content: [] };
      case "die":
        process.exit(3);
      case "grow":
        tools.push({ name: `extra_${tools.length - 8}`, description: "One more.", inputSchema: object });
        await server.sendToolListChanged();
        return said("grown") as { content: [] };
      case "environment":
        return said(Object.keys(process.env).sort().join(" ")) as { content: [] };
      default:
        if (name.startsWith("extra_")) return said(`${name} ran`) as { content: [] };
        throw new Error(`there is no tool ${name}`);
    }
  });
  return server;
}

if (process.argv[2] === "http") {
  const listener = createServer(async (request, response) => {
    const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true } as never);
    response.on("close", () => void transport.close());
    await made().connect(transport as never);
    await transport.handleRequest(request, response);
  });
  listener.listen(0, "127.0.0.1", () => console.log((listener.address() as AddressInfo).port));
} else {
  note(`began ${process.pid}`);
  process.stdin.on("end", () => {
    note("ended");
    process.exit(0);
  });
  void made().connect(new StdioServerTransport());
}
